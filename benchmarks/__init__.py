"""Numbers that the documentation quotes: each is printed by one of these commands."""

import sys
from types import TracebackType
from typing import Final

# Packages that come with another extra than `dev`, or with none.
EXTRAS: Final = {"cuda": "[cuda]", "penstock": ""}


def _name_the_extra(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A benchmark that lacks a package ends with the command that installs it, not with a traceback."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        extra = EXTRAS.get(package, "[dev]")
        print(f"{error.name} is not installed: pip install --editable '.{extra}' brings it", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _name_the_extra
