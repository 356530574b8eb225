"""What a repository on Hugging Face holds, as its API tells: files, sizes and checksums."""

import hashlib
import json
import re
from typing import Any, Final, NamedTuple

from penstock.errors import HubError

MOST_FILES: Final = 100_000
MOST_BYTES: Final = 1 << 50
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class RemoteFile(NamedTuple):
    """digest: SHA-256 of large files, git's own name (SHA-1) of small ones; the cache calls a file's bytes so."""

    path: str
    size: int
    digest: str

    def hasher(self) -> Any:
        """To be fed with all bytes; its `hexdigest()` is then the digest."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size)


class Listing(NamedTuple):
    """commit: which state of the repository this is."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]


def parse_listing(answer: bytes, repo: str) -> Listing:
    """The answer of `/api/models/REPO/revision/main?blobs=true`.  Raises HubError for anything else."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        raise HubError(f"{repo}: the hub's answer is not JSON; is HF_ENDPOINT a hub?") from None
    if not isinstance(found, dict):
        raise _unexpected(repo, "expected an object")
    commit, siblings = found.get("sha"), found.get("siblings")
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise _unexpected(repo, "no commit in sha")
    if not isinstance(siblings, list) or len(siblings) > MOST_FILES:
        raise _unexpected(repo, "no list of files in siblings")
    files = tuple(_file(entry, repo) for entry in siblings)
    if len({file.path for file in files}) != len(files):
        raise _unexpected(repo, "the same file twice")
    return Listing(repo, commit, files)


def _file(entry: Any, repo: str) -> RemoteFile:
    match entry:
        case {"rfilename": str(path), "lfs": {"sha256": str(digest), "size": int(size)}}:
            good = _SHA256.fullmatch(digest)
        case {"rfilename": str(path), "blobId": str(digest), "size": int(size)}:
            good = _COMMIT.fullmatch(digest)
        case {"rfilename": str(path)}:
            raise _unexpected(repo, f"no size or checksum for {path[:200]!r}")
        case _:
            raise _unexpected(repo, "a file without rfilename")
    if not good or isinstance(size, bool) or not 0 <= size <= MOST_BYTES:
        raise _unexpected(repo, f"size or checksum of {path[:200]!r} cannot be")
    # The path becomes a place on this disk: nothing may lead out of the repository's folder.
    parts = path.split("/")
    if (
        len(path) > 1000
        or not path.isprintable()
        or "\\" in path
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise _unexpected(repo, f"{path[:200]!r} is no path inside a repository")
    return RemoteFile(path, size, digest)


def _unexpected(repo: str, what: str) -> HubError:
    return HubError(f"{repo}: the hub's answer is not what a hub says ({what}); is HF_ENDPOINT a hub?")
