"""Saved conversations: by name in a folder of their own, or wherever a path says."""

import os
from datetime import datetime
from pathlib import Path
from typing import Final

from penstock.chat.chat_session import session_path
from penstock.chat.saved import conversation_from_json
from penstock.errors import OptionError, PenstockError
from penstock.sizes import size

SUFFIX: Final = ".chat"


def state_folder() -> Path:
    """What Penstock keeps for this user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "penstock"


def chats_folder() -> Path:
    return state_folder() / "chats"


def chat_path(name: str) -> Path:
    """`name`, if it looks like a path; else the conversation of that name.

    >>> chat_path("./here"), chat_path("rain").name
    (PosixPath('here'), 'rain.chat')
    """
    if "/" in name or name.startswith(("~", ".")):
        return Path(name).expanduser()
    if not name.isprintable():
        raise OptionError(f"{name!r} is no name for a conversation")
    return chats_folder() / f"{name}{SUFFIX}"


def found_path(name: str) -> Path:
    """What is to be loaded: also a file of that name in the folder where the program was started."""
    path = chat_path(name)
    return Path(name) if not path.exists() and Path(name).is_file() else path


def saved_chats() -> list[str]:
    """A line for each conversation that was saved by name, latest first."""
    paths = sorted(chats_folder().glob(f"*{SUFFIX}"), key=lambda path: -path.stat().st_mtime)
    width = max((len(path.stem) for path in paths), default=0)
    return [f"{path.stem:{width}}  {_about(path)}" for path in paths]


def _about(path: Path) -> str:
    try:
        messages = f"{len(conversation_from_json(path.read_text(encoding='utf-8')).messages)} messages"
    except (OSError, ValueError, PenstockError):
        messages = "cannot be read"
    state = session_path(path)
    nbytes = path.stat().st_size + (state.stat().st_size if state.exists() else 0)
    when = datetime.fromtimestamp(path.stat().st_mtime).strftime("%Y-%m-%d %H:%M")
    return f"{when}  {messages}, {size(nbytes)}"
