"""Which files make up a model, and which model of a repository is meant."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.errors import HubError
from penstock.sizes import disk_size
from penstock.weights.open_gguf import SPLIT_NAME

# How weights are stored, as names of files tell: Q4_K_M, UD-IQ2_XXS, MXFP4_MOE, BF16.
_QUANT: Final = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)+|TQ[12]_0|MXFP4(?:_[A-Z0-9]+)*|NVFP4|FP8|BF16|F16|F32))(?=$|[-._/])",
    re.IGNORECASE,
)
_RELEASE: Final = re.compile(r"(?:^|[-._])(0[1-9]\d\d|1[0-2]\d\d)(?=$|[-._])")  # such as 0731
_DRAFT: Final = re.compile(r"(?:^|[-._/])(mtp|nextn)(?=$|[-._])", re.IGNORECASE)
# Files that go with a model and are none: what guided a quantisation, other drafters, image encoders.
_ASIDE: Final = re.compile(
    r"(?:^|/)imatrix|(?:^|[-._/])(?:dspark|mmproj|(?:vision-)?encoder)(?=$|[-._])", re.IGNORECASE
)


class Sized(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


F = TypeVar("F", bound=Sized)


class Choice(NamedTuple, Generic[F]):
    """One model of a repository: a GGUF file, all its splits, or the safetensors with what goes with them.

    path: of the first file; empty: the folder is the model; is_draft: only the draft block of others.
    """

    path: str
    files: tuple[F, ...]
    is_draft: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def stem(self) -> str:
        """The path without what is the same for all: number of the split, ending."""
        split = SPLIT_NAME.fullmatch(self.path)
        return split[1] if split else self.path.removesuffix(".gguf")

    @property
    def label(self) -> str:
        """How the weights are stored, or the name of the file where that does not tell."""
        found = _QUANT.findall(_last(self.stem))
        return (found[-1] if found else _last(self.stem)) if self.path else "safetensors"


def choices(files: Iterable[F]) -> list[Choice[F]]:
    """The models that these files hold, the smallest first.  Splits of which some are missing are no model."""
    ggufs: dict[str, list[F]] = {}
    folder: list[F] = []
    for file in files:
        if file.path.lower().endswith(".gguf"):
            split = SPLIT_NAME.fullmatch(file.path)
            ggufs.setdefault(f"{split[1]} of {split[3]}" if split else file.path, []).append(file)
        elif "/" not in file.path and file.path.endswith((".safetensors", ".json", ".jinja")):
            folder.append(file)
    found = [_gguf(sorted(parts, key=lambda file: file.path)) for parts in ggufs.values()]
    whole = _mark_drafts([choice for choice in found if choice is not None])
    names = [file.path for file in folder]
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        whole.append(Choice("", tuple(sorted(folder, key=lambda file: file.path))))
    return sorted(whole, key=lambda choice: (choice.size, choice.path))


def _mark_drafts(found: list[Choice[F]]) -> list[Choice[F]]:
    """A model may have MTP in its name because the block is in it; a block alone is smaller than any model."""
    named = {choice.path: _DRAFT.search(_last(choice.path)) is not None for choice in found}
    least = min((choice.size for choice in found if not named[choice.path]), default=0)
    return [choice._replace(is_draft=named[choice.path] and choice.size < least) for choice in found]


def _gguf(parts: list[F]) -> Choice[F] | None:
    split = SPLIT_NAME.fullmatch(parts[0].path)
    if split and (int(split[2]) != 1 or int(split[3]) != len(parts)):
        return None
    return None if _ASIDE.search(parts[0].path) else Choice(parts[0].path, tuple(parts))


def choose(
    found: list[Choice[F]], wanted: str, repo: str, short: Mapping[str, str], *, partly: bool = True
) -> Choice[F]:
    """The model that `wanted` names: a path, a quantisation or, if `partly`, some of a name that no other has.

    short: names that stand for paths.  Without `wanted` there must be one model only.
    """
    models = [choice for choice in found if not choice.is_draft]
    if not models:
        raise HubError(f"{repo}: no GGUF file and no safetensors with a config.json in it")
    if not wanted and len(models) == 1:
        return models[0]
    word = short.get(wanted.lower(), wanted).lower()
    ways: list[Callable[[Choice[F]], bool]] = [
        lambda choice: word in [file.path.lower() for file in choice.files],
        lambda choice: word in [_last(file.path).lower() for file in choice.files],
        lambda choice: word in (choice.stem.lower(), _last(choice.stem).lower()),
        lambda choice: word == choice.label.lower(),
        lambda choice: word == choice.label.lower().removeprefix("ud-"),
    ]
    if partly:
        ways.append(lambda choice: word in choice.path.lower())
    for way in ways if word else ():
        fitting = [choice for choice in found if way(choice)]
        fitting = [choice for choice in fitting if not choice.is_draft] or fitting
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise HubError(f"{repo}: {wanted!r} is in the names of several models:\n{listed(fitting, short)}")
    problem = f"no model is called {wanted!r}" if wanted else "several models"
    raise HubError(f"{repo}: {problem}; name one of these\n{listed(models, short)}")


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def listed(found: Iterable[Choice[F]], short: Mapping[str, str]) -> str:
    """A line for each: what to write after the colon, its size and its file."""
    names = {path: name for name, path in short.items()}
    return "\n".join(
        f"  {names.get(choice.path, choice.label):<12} {disk_size(choice.size):>9}  {choice.path or 'the folder'}"
        f"{f' and {len(choice.files) - 1} more' if choice.path and len(choice.files) > 1 else ''}"
        for choice in found
    )


def draft_for(model: Choice[F], found: Iterable[Choice[F]]) -> Choice[F] | None:
    """The file with the draft block for a model, of the same release; None where there is none, or no certain one."""
    if not model.path:
        return None
    release = _RELEASE.findall(model.stem)
    fitting = [
        choice
        for choice in found
        if choice.is_draft
        and choice.path.rpartition("/")[0] in ("", model.path.rpartition("/")[0])
        and _RELEASE.findall(choice.stem) == release
        and ("pro" in choice.stem.lower().split("-")) == ("pro" in model.stem.lower().split("-"))
    ]
    return fitting[0] if len(fitting) == 1 else None
