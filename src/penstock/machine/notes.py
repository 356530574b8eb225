"""Small things worth remembering from one run to the next, in the user's cache folder."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

MOST: Final = 256  # things in a file; the oldest are forgotten


def notes_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock"


def notes_path(name: str) -> Path:
    return notes_folder() / f"{name}.json"


def recall(name: str) -> dict[str, Any]:
    """What was noted.  A damaged file is as good as none."""
    try:
        found = json.loads(notes_path(name).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(name: str, key: str, value: Any) -> None:
    """Notes one thing more.  A file system that refuses is no reason to fail."""
    path = notes_path(name)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    others = {each: noted for each, noted in recall(name).items() if each != key}
    kept = dict([*others.items(), (key, value)][-MOST:])
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps(kept, indent=1))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
