"""From the hub to this disk: which files, whether there is room, the bytes, and whether they are the right ones."""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import HubError
from penstock.hub.cache import Repository
from penstock.hub.catalog import short_names
from penstock.hub.choices import Choice, choices, choose, draft_for
from penstock.hub.listing import Listing, RemoteFile
from penstock.hub.progress import DownloadProgress
from penstock.hub.reference import Reference
from penstock.hub.service import list_files
from penstock.hub.transfer import Source, read_in_order
from penstock.sizes import disk_size

SPARE: Final = 64 << 20  # bytes that a disk must have left, for what writing takes besides


class Wanted(NamedTuple):
    """What a reference stands for on the hub now.  draft: the file with the draft block that goes with the model."""

    listing: Listing
    model: Choice[RemoteFile]
    draft: Choice[RemoteFile] | None

    @property
    def repository(self) -> Repository:
        return Repository.of(self.listing.repo)

    def files(self, with_draft: bool = False) -> tuple[RemoteFile, ...]:
        """Of the model, and of its draft block."""
        if not with_draft:
            return self.model.files
        if self.draft is None:
            repo, label = self.listing.repo, self.model.label
            raise HubError(f"{repo}: there is no file with a draft block (MTP) that goes with {label}")
        return (*self.model.files, *self.draft.files)

    def missing(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        return [file for file in files if not self.repository.blob(file).is_file()]

    def bytes_missing(self, files: Iterable[RemoteFile]) -> int:
        """What is still to come of them."""
        return sum(file.size - _begun(self.repository, file) for file in self.missing(files))


def look_up(reference: Reference) -> Wanted:
    """Asks the hub.  Raises HubError, with what there is, unless one model is meant."""
    listing = list_files(reference.repo)
    found = choices(listing.files)
    model = choose(found, reference.file, reference.repo, short_names(reference.repo))
    return Wanted(listing, model, draft_for(model, found))


def pull(wanted: Wanted, with_draft: bool = False) -> Path:
    """Downloads what is not here yet, and returns what `-m` takes.  What was begun before is gone on with."""
    repository, listing = wanted.repository, wanted.listing
    files = wanted.files(with_draft)
    check_room(wanted, files)
    total = sum(file.size for file in files)
    missing = wanted.missing(files)
    done = total - sum(file.size for file in missing)
    try:
        with DownloadProgress(wanted.model.label, total, done) as shown:
            for file in missing:
                with repository.lock(file):
                    _download(repository, Source(listing, file), shown)
        for file in files:
            repository.link(listing, file)
        repository.note_main(listing.commit)
    except OSError as error:
        where = error.filename or repository.folder
        if error.errno == errno.ENOSPC:
            raise HubError(f"{where}: the disk is full; with more room the same command goes on") from None
        raise HubError(f"{where}: cannot be written: {error.strerror or error}") from None
    return repository.snapshot(listing.commit) / wanted.model.path


def check_room(wanted: Wanted, files: Iterable[RemoteFile]) -> None:
    """Raises HubError if the disk has too little room for what is still to come."""
    needed, folder = wanted.bytes_missing(files), wanted.repository.folder
    free = free_bytes(folder)
    if needed and needed + SPARE > free:
        raise HubError(
            f"{folder}: {disk_size(needed)} are needed, {disk_size(free)} are free; HF_HOME names another "
            "place"
        )


def free_bytes(folder: Path) -> int:
    """Of the disk under a folder that may be still to be made."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """The folder, or the innermost one around it that is there."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def _begun(repository: Repository, file: RemoteFile) -> int:
    """Bytes that an earlier attempt has left."""
    try:
        return min(file.size, repository.partial(file).stat().st_size)
    except OSError:
        return 0


def _download(repository: Repository, source: Source, shown: DownloadProgress) -> None:
    """One file.  Its bytes get the name of their checksum only if they have that checksum."""
    file = source.file
    blob, partial = repository.blob(file), repository.partial(file)
    if blob.is_file():  # by another process, while this one waited
        shown.found(file.size)
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    name = os.path.basename(file.path)
    hasher = file.hasher()
    with partial.open("a+b") as out:
        begun = _begun(repository, file)
        out.truncate(begun)  # never longer than the file, whoever wrote it
        out.seek(0)
        shown.name_file(f"checking {name}" if begun else name)
        while chunk := out.read(1 << 20):
            hasher.update(chunk)
            shown.found(len(chunk))
        shown.name_file(name)
        for chunk in read_in_order(source, begun, file.size):
            out.write(chunk)
            hasher.update(chunk)
            shown.advance(len(chunk))
        out.flush()
        os.fsync(out.fileno())
    if hasher.hexdigest() != file.digest:
        partial.unlink()
        raise HubError(
            f"{source.repo}: {file.path}: what came has the checksum {hasher.hexdigest()[:16]}…, the hub says "
            f"{file.digest[:16]}…; it was deleted, pull again"
        )
    partial.replace(blob)
