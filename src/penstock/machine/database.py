"""Small SQLite files of this user's own: made, or made anew where what is there is none."""

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.machine.private import make_private_file, private_folder

BUSY_TIMEOUT: Final = 0.2  # seconds that another process may keep the file busy


def open_database(file: Path | None, *statements: str) -> sqlite3.Connection | None:
    """The file after these statements, or a database in memory if there is to be no file; None if there cannot be
    one.  Threads may share it."""
    if file is None:
        return _connect(":memory:", statements)
    for _ in range(2):
        with suppress(sqlite3.OperationalError, OSError):
            private_folder(file.parent)
            make_private_file(file)
            try:
                return _connect(str(file), statements)
            except sqlite3.DatabaseError as error:
                if not isinstance(error, sqlite3.OperationalError):  # not a database
                    file.unlink(missing_ok=True)
    return None


def _connect(place: str, statements: tuple[str, ...]) -> sqlite3.Connection:
    connection = sqlite3.connect(place, BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        for statement in statements:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection
