"""Deleting models.  In Hugging Face's cache a file is a link to bytes that others may use too."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from penstock.errors import HubError
from penstock.hub.cache import cache_folder


def bytes_of(paths: Iterable[Path]) -> int:
    """Of these files, and of all in these folders; what is linked twice counts once."""
    found: dict[Path, int] = {}
    for path in paths:
        for file in _files(path) if path.is_dir() else [path]:
            with suppress(OSError):
                found[file.resolve()] = file.stat().st_size
    return sum(found.values())


def remove(paths: Iterable[Path]) -> None:
    """Deletes files, or whole folders; of files in the cache also bytes that nothing else links to."""
    try:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
                continue
            target = _target(path)
            path.unlink()
            if (repository := _repository(path)) is not None:
                if not any(_target(file) == target for file in _files(repository / "snapshots")):
                    target.unlink(missing_ok=True)
                _tidy(path.parent, repository)
    except OSError as error:
        raise HubError(f"{error.filename}: cannot be deleted: {error.strerror}") from None


def _files(folder: Path) -> list[Path]:
    return [Path(base, name) for base, _, names in os.walk(folder) for name in names]


def _target(path: Path) -> Path:
    """Where a link leads.  One step: the bytes may themselves be a link to a store that is not ours to clear."""
    if not path.is_symlink():
        return path
    return Path(os.path.normpath(path.parent / os.readlink(path)))


def _repository(path: Path) -> Path | None:
    """The folder of the cache's repository that a path is in; None: in none."""
    root = cache_folder()
    return root / path.relative_to(root).parts[0] if path.is_relative_to(root) else None


def _tidy(folder: Path, repository: Path) -> None:
    """Takes away the folders that nothing is left in, and the repository's own after its last bytes."""
    while folder != repository and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
    if not any((repository / "blobs").glob("*")):
        shutil.rmtree(repository)
