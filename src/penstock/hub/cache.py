"""Hugging Face's cache on this disk, shared with every program that uses it:

models--OWNER--NAME/
    blobs/DIGEST                 bytes of a file, once
    blobs/DIGEST.incomplete      the beginning of them
    refs/main                    the commit that main was when it was last asked for
    snapshots/COMMIT/PATH        links to the blobs
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from penstock.errors import HubError
from penstock.hub.listing import Listing, RemoteFile


def cache_folder() -> Path:
    """As `huggingface_hub` finds it, without importing that."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if found := os.environ.get(name):
            return _expanded(found)
    home = os.environ.get("HF_HOME")
    if not home:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return _expanded(home) / "hub"


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))


class Repository(NamedTuple):
    """One repository's part of the cache."""

    repo: str
    folder: Path

    @classmethod
    def of(cls, repo: str) -> "Repository":
        return cls(repo, cache_folder() / f"models--{repo.replace('/', '--')}")

    def blob(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / file.digest

    def partial(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / f"{file.digest}.incomplete"

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def snapshots(self) -> list[Path]:
        """All there are; what main was when it was last asked for comes first, then the newest."""
        main, found = b"", []
        with suppress(OSError):
            found = [path for path in (self.folder / "snapshots").iterdir() if path.is_dir()]
            main = (self.folder / "refs" / "main").read_bytes().strip()
        return sorted(found, key=lambda path: (path.name.encode() != main, -path.stat().st_mtime))

    def link(self, listing: Listing, file: RemoteFile) -> Path:
        """Makes the file part of the snapshot; returns where it is there."""
        path = self.snapshot(listing.commit) / file.path
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a link to nothing
            path.symlink_to(os.path.relpath(self.blob(file), path.parent))
        return path

    def note_main(self, commit: str) -> None:
        ref = self.folder / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit, encoding="utf-8")

    @contextmanager
    def lock(self, file: RemoteFile) -> Iterator[None]:
        """Only one process downloads a file; `huggingface_hub` looks at the same lock."""
        from filelock import FileLock, Timeout

        path = self.folder.parent / ".locks" / self.folder.name / f"{file.digest}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise HubError(f"{self.repo}: another process is downloading {file.path} right now") from None
        try:
            yield
        finally:
            lock.release()


def repositories() -> list[Repository]:
    """Those in the cache, by name."""
    try:
        folders = sorted(path for path in cache_folder().iterdir() if path.name.startswith("models--"))
    except OSError:
        return []
    return [Repository(path.name.removeprefix("models--").replace("--", "/", 1), path) for path in folders]
