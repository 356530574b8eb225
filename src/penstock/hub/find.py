"""What `-m` and `Engine` are given becomes a path: a file, a name on Hugging Face, or a name of a model here."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import HubError, ModelFormatError
from penstock.hub.cache import Repository
from penstock.hub.catalog import known_by_name, short_names
from penstock.hub.choices import choose
from penstock.hub.reference import Reference, is_reference, parse_reference
from penstock.hub.service import is_offline

if TYPE_CHECKING:
    from penstock.hub.pull import Wanted

_REPO_LIKE: Final = re.compile(r"[\w.-]+/[\w.-]+(:.+)?")


def find_model(name: str | Path, *, download: bool = True) -> Path:
    """A path to open.  What is here is used without asking the hub.  A model on Hugging Face that is not here is
    downloaded or, if that is not wanted, an error that says how."""
    text = str(name)
    if not is_reference(text):
        path = Path(name)
        if path.is_dir() and not (path / "config.json").exists():
            from penstock.hub.library import local_models

            # A folder that holds no model does not hide the model of its name.
            return next((model.path for model in local_models() if model.name == text), path)
        return path if path.exists() else _by_name(text)
    reference = parse_reference(text)
    here = find_cached(reference)
    if here is not None:
        return here
    if not download:
        raise HubError(
            f"{text} is not here; `penstock pull {reference}` downloads it, and with --dry-run only says "
            "how it would run here"
        )
    return download_model(reference)[1]


def _by_name(text: str) -> Path:
    from penstock.hub.library import find_local

    found = find_local(text)
    if found is not None:
        return found.path
    known = known_by_name(text)
    if known is not None:
        raise HubError(f"{text}: not here yet; `penstock pull {known.name}` downloads it from {known.repo}")
    more = ", and no model that `penstock models` lists is called so"
    if _REPO_LIKE.fullmatch(text):
        more += f"; hf:{text} asks Hugging Face for it"
    raise ModelFormatError(f"{text}: no such file or folder{more if not text.endswith('.gguf') else ''}")


def find_cached(reference: Reference) -> Path | None:
    """Where a model from the hub is in the cache; None: it is not, or not all of it.

    Part of a name is not enough: the hub may have a model that fits better.
    """
    from penstock.hub.library import choices_in

    for snapshot in Repository.of(reference.repo).snapshots():
        try:
            found = choose(
                choices_in(snapshot),
                reference.file,
                reference.repo,
                short_names(reference.repo),
                partly=is_offline(),
            )
        except HubError:
            continue
        return snapshot / found.path
    return None


def download_model(reference: Reference, with_draft: bool = False) -> "tuple[Wanted, Path]":
    """Asks the hub and downloads what is not here.  Ctrl-C says on stderr that nothing is lost."""
    from penstock.hub.pull import look_up, pull

    wanted = look_up(reference)
    try:
        return wanted, pull(wanted, with_draft)
    except KeyboardInterrupt:
        print(
            "penstock: interrupted; what has come is kept, and the same command goes on from there",
            file=sys.stderr,
        )
        raise
