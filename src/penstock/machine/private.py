"""Files that nobody else should read: conversations, saved sessions, keys."""

import os
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

FOLDER: Final = 0o700
FILE: Final = 0o600


def private_folder(path: Path) -> Path:
    """The folder, made if need be.  It and all that it holds are this user's alone from now on; where that cannot be,
    a warning says so."""
    path.mkdir(mode=FOLDER, parents=True, exist_ok=True)
    refused: list[OSError] = []
    for base, folders, files in os.walk(path):
        for name in (".", *folders, *files):
            try:
                _close(Path(base, name))
            except FileNotFoundError:
                pass  # others share the folder, and tidy it up
            except OSError as error:
                refused.append(error)
    if refused:
        warnings.warn(
            f"{path}: others may be able to read what is saved here: {refused[0].strerror}", stacklevel=2
        )
    return path


def _close(path: Path) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return
    wanted = FOLDER if stat.S_ISDIR(mode) else FILE
    if stat.S_IMODE(mode) & ~wanted:
        path.chmod(stat.S_IMODE(mode) & wanted)


def private_file(path: Path, mode: str = "wb") -> IO[bytes]:
    """A file to write, which only this user may read."""
    file = open(path, mode, opener=lambda name, flags: os.open(name, flags, FILE))  # noqa: SIM115
    with suppress(OSError):  # one that was there already
        os.fchmod(file.fileno(), FILE)
    return file


def make_private_file(path: Path) -> None:
    """For files that others open, such as a database: it is there, and private."""
    private_file(path, "ab").close()
