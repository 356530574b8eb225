"""Small things worth remembering from one run to the next, in the user's cache folder."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def notes_path(name: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock" / f"{name}.json"


def recall(name: str) -> dict[str, Any]:
    """What was noted.  A damaged file is as good as none."""
    try:
        found = json.loads(notes_path(name).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(name: str, key: str, value: Any) -> None:
    """Notes one thing more.  A file system that refuses is no reason to fail."""
    path = notes_path(name)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps({**recall(name), key: value}, indent=1))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
