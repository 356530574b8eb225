"""A home of their own for tests and the programs they start: the user's caches and settings stay as they are.

Importing this points HOME and its relatives to a temporary folder, before anything is imported that asks where it is.
Whoever would write to the real ones all the same, or start a program that would, is stopped by an audit hook and
remembered in `TRESPASSES`, which fails the test even where the code swallows the error.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# Where programs keep things, by variable, and below HOME where it is not set.
FOLDERS: Final = {
    "HOME": "",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "HF_HOME": ".cache/huggingface",
}
# What programs may go on reading from the real home: how to reach their sources, and what is installed there.
STILL_READ: Final = {
    "NPM_CONFIG_USERCONFIG": ".npmrc",
    "PIP_CONFIG_FILE": ".config/pip/pip.conf",
    "PLAYWRIGHT_BROWSERS_PATH": ".cache/ms-playwright",
}
REAL: Final = "PENSTOCK_TESTS_REAL_HOME"  # tells workers, which find HOME changed, what it was
TRESPASSES: Final[list[str]] = []

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES: Final = {  # events, and which of their arguments name what is changed
    "os.chmod": (0,),
    "os.link": (1,),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "sqlite3.connect": (0,),
}
_STARTS: Final = {
    "subprocess.Popen": 3,
    "os.exec": 2,
    "os.posix_spawn": 2,
}  # and which argument is its environment
HARMLESS: Final = ("/sbin/ldconfig",)  # asked by Python where libraries lie; it looks at no HOME


def _move_in() -> Path | None:
    """Changes the environment and sets the watch.  The new folder, for its maker to remove; None in a worker."""
    made = None
    if REAL not in os.environ:
        made = Path(tempfile.mkdtemp(prefix="penstock-tests-"))
        real = {name: os.environ.get(name) for name in FOLDERS}
        home = real["HOME"] or str(Path.home())
        real_folders = [value or os.path.join(home, FOLDERS[name]) for name, value in real.items()]
        os.environ[REAL] = os.pathsep.join([home, *real_folders[1:]])
        for name, place in STILL_READ.items():
            if os.path.exists(os.path.join(home, place)):
                os.environ.setdefault(name, os.path.join(home, place))
        for name, place in FOLDERS.items():
            (made / place).mkdir(parents=True, exist_ok=True)
            os.environ[name] = str(made / place)
    sys.addaudithook(_Watch(os.environ[REAL].split(os.pathsep)))
    return made


def move_out() -> None:
    if MADE is not None:
        shutil.rmtree(MADE, ignore_errors=True)


class _Watch:
    def __init__(self, real: list[str]):
        self.home, *others = [os.path.realpath(folder) for folder in real]
        # Of the home itself, what its owner does not see: the checkout may lie beside it.
        self.guarded = (os.path.join(self.home, "."), *(os.path.join(folder, "") for folder in others))
        ours = [Path(__file__).parents[1], tempfile.gettempdir(), sys.prefix, sysconfig.get_path("stdlib")]
        self.exempt = tuple(place for path in ours if (place := f"{path}/").startswith(self.guarded))

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & _WRITING:
                self._check_path(path)
        elif event in _CHANGES:
            for place in _CHANGES[event]:
                self._check_path(arguments[place])
        elif event in _STARTS:
            self._check_environment(arguments[0], arguments[_STARTS[event]])

    def _check_path(self, path: Any) -> None:
        if isinstance(path, int):  # open already
            return
        full = os.path.abspath(os.fsdecode(path))
        if (
            f"{full}/".startswith(self.guarded)
            and not full.startswith(self.exempt)
            and "__pycache__" not in full
        ):
            _stop(f"{full} is the user's own: a test must not write there")

    def _check_environment(self, program: Any, environment: Mapping[Any, Any] | None) -> None:
        if program in HARMLESS:
            return
        found = {
            os.fsdecode(name): os.fsdecode(value)
            for name, value in (os.environ if environment is None else environment).items()
        }
        home = found.get("HOME")  # without it, programs look for it in the list of users
        if home is None or os.path.realpath(home) == self.home:
            _stop(f"{program} is started with the user's own HOME")
        for name in FOLDERS.keys() & found.keys() - {"HOME"}:
            if f"{found[name]}/".startswith(self.guarded):
                _stop(f"{program} is started with the user's own {name}")


def _stop(reason: str) -> None:
    TRESPASSES.append(reason)
    raise AssertionError(reason)


MADE: Final = _move_in()
