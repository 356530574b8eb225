"""What programs measure of this machine, known to those that tests start: it takes seconds, longer on a busy one."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.conftest import CACHE

SHARED: Final = CACHE / "penstock" / "machine.json"  # of all tests of this run


@contextmanager
def machine_known(cache: Path) -> Iterator[None]:
    """Programs with this cache folder know what others have measured, and what they measure is known to the next."""
    own = cache / "penstock" / SHARED.name
    own.parent.mkdir(parents=True, exist_ok=True)
    if SHARED.exists():
        shutil.copy(SHARED, own)
    yield
    if own.exists():
        # Tests keep the machine busy, so programs would not believe it and measure it again and again.
        noted: dict[str, Any] = {key: {**each, "busy_trials": 0} for key, each in _read(own).items()}
        part = SHARED.with_name(f"{SHARED.name}.{os.getpid()}")
        part.write_text(json.dumps(_read(SHARED) | noted))
        part.replace(SHARED)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
