"""Deleting models.  In Hugging Face's cache a file is a link to bytes that others may use too."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from penstock.errors import HubError
from penstock.hub.cache import cache_folder


def blobs_of(files: Iterable[Path]) -> int:
    """Bytes of these files, or of all in these folders; what is linked twice counts once."""
    found: dict[Path, int] = {}
    for path in files:
        for file in (
            [path]
            if not path.is_dir()
            else [Path(base, name) for base, _, names in os.walk(path) for name in names]
        ):
            with suppress(OSError):
                found[file.resolve()] = file.stat().st_size
    return sum(found.values())


def remove(files: Iterable[Path]) -> None:
    """Deletes files, or whole folders of the cache; of files in the cache also bytes that nothing else links to."""
    try:
        for path in files:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
                continue
            blob = path.resolve()
            path.unlink()
            repository = _repository(path)
            if repository is not None and not _is_linked(repository, blob):
                blob.unlink(missing_ok=True)
            _remove_empty(path.parent, repository)
    except OSError as error:
        raise HubError(f"{error.filename}: cannot be deleted: {error.strerror}") from None


def _repository(path: Path) -> Path | None:
    """The folder of the cache's repository that a path is in; None: in none."""
    root = cache_folder()
    return root / path.relative_to(root).parts[0] if path.is_relative_to(root) else None


def _is_linked(repository: Path, blob: Path) -> bool:
    return any(
        Path(base, name).resolve() == blob
        for base, _, names in os.walk(repository / "snapshots")
        for name in names
    )


def _remove_empty(folder: Path, repository: Path | None) -> None:
    """Folders of a snapshot that nothing is left in; the repository's own if that was the last."""
    while repository is not None and folder != repository.parent and folder.is_dir():
        left = list(folder.iterdir())
        if folder == repository and not any((repository / name).exists() for name in ("snapshots",)):
            shutil.rmtree(folder)
        elif not left:
            folder.rmdir()
        else:
            return
        folder = folder.parent
