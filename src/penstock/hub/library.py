"""The models that are here: in the package, in the user's folder of models, in Hugging Face's cache."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.environment import MODELS
from penstock.errors import HubError, ModelFormatError
from penstock.hub.cache import Repository, repositories
from penstock.hub.catalog import short_names
from penstock.hub.choices import Choice, choices, draft_for
from penstock.pocket import pocket_path
from penstock.weights.safetensors_reader import read_json_file

POCKET = "pocket"


class LocalFile(NamedTuple):
    """A file of a model.  path: relative to its folder."""

    path: str
    size: int


class LocalModel(NamedTuple):
    """name: what `-m` takes; path: what is opened; size: bytes on the disk; repository: None outside the cache."""

    name: str
    path: Path
    size: int
    files: tuple[Path, ...]
    repository: Repository | None = None

    @property
    def where(self) -> str:
        if self.name == POCKET:
            return "package"
        return "folder" if self.repository is None else "cache"


def models_folder() -> Path:
    """The user's own: $PENSTOCK_MODELS, or a folder that everything of ours would be in."""
    if chosen := MODELS.read():
        return Path(chosen).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "penstock" / "models"


def local_models() -> list[LocalModel]:
    """All of them, by name within each place.  Drafters and incomplete models are none."""
    return [
        *_pocket(),
        *_own(models_folder()),
        *(model for found in repositories() for model in cached(found)),
    ]


def _pocket() -> Iterator[LocalModel]:
    try:
        path = pocket_path()
    except ModelFormatError:
        return
    yield LocalModel(POCKET, path, path.stat().st_size, (path,))


def _own(folder: Path) -> Iterator[LocalModel]:
    """GGUF files anywhere in the folder, and folders of safetensors in it."""
    try:
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return
    files = [choice for choice in choices_in(folder) if choice.path and not choice.is_draft]
    yield from sorted(_local(choice, folder) for choice in files)
    for checkpoint in below:
        yield from (_local(choice, checkpoint) for choice in choices_in(checkpoint) if not choice.path)


def _local(choice: Choice[LocalFile], folder: Path) -> LocalModel:
    name = Path(choice.stem).name if choice.path else folder.name
    return LocalModel(
        name, folder / choice.path, choice.size, tuple(folder / file.path for file in choice.files)
    )


def cached(repository: Repository) -> list[LocalModel]:
    """The models of a repository that are in the cache, each once: as main has it, or as the newest snapshot has."""
    short = {path: name for name, path in short_names(repository.repo).items()}
    found: dict[str, LocalModel] = {}
    for snapshot in repository.snapshots():
        for choice in choices_in(snapshot):
            if not choice.is_draft and choice.path not in found:
                label = short.get(choice.path, choice.label)
                name = f"{repository.repo}:{label}" if choice.path else repository.repo
                if any(other.name == name for other in found.values()):
                    name = f"{repository.repo}:{choice.path}"
                files = tuple(snapshot / file.path for file in choice.files)
                found[choice.path] = LocalModel(name, snapshot / choice.path, choice.size, files, repository)
    return sorted(found.values())


def choices_in(folder: Path) -> list[Choice[LocalFile]]:
    """What lies in a folder and below it, whole."""
    files = []
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = Path(base, name)
            try:
                files.append(LocalFile(path.relative_to(folder).as_posix(), path.stat().st_size))
            except OSError:  # a link to nothing
                continue
    return [choice for choice in choices(files) if choice.path or _all_shards(folder)]


def _all_shards(folder: Path) -> bool:
    """Whether every file that the index of a checkpoint names is there."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return True
    try:
        shards = read_json_file(index).get("weight_map", {})
        return all((folder / name).is_file() for name in set(shards.values()))
    except (ModelFormatError, AttributeError, TypeError):
        return False


def find_local(name: str) -> LocalModel | None:
    """The model that is called so: its name, or a part of it that no other has.  Several are an error with the list.
    None: there is none."""
    models, word = local_models(), name.lower()
    ways: tuple[Callable[[LocalModel], bool], ...] = (
        lambda model: word == model.name.lower(),
        lambda model: word in _parts(model.name),
        lambda model: any(part.startswith(word) for part in (model.name.lower(), *_parts(model.name))),
        lambda model: word in model.name.lower() or word in model.path.name.lower(),
    )
    for way in ways if word else ():
        found = [model for model in models if way(model)]
        if len(found) == 1:
            return found[0]
        if found:
            names = "\n".join(f"  {model.name}" for model in found)
            raise HubError(f"{name!r} could be any of these models:\n{names}")
    return None


def _parts(name: str) -> list[str]:
    """Owner, repository and file; or just the name."""
    return re.split("[/:]", name.lower())


def draft_beside(path: Path) -> Path | None:
    """The file with the draft block of a GGUF model that lies in the same folder, if there is a certain one."""
    found = choices_in(path.parent) if path.suffix == ".gguf" else []
    model = next((choice for choice in found if choice.path == path.name), None)
    draft = None if model is None else draft_for(model, found)
    return None if draft is None else path.parent / draft.path
