"""Several machines, one model: each runs some of the layers, and hands what they gave to the next."""

from importlib.util import find_spec

from penstock.errors import OptionError


def require() -> None:
    """What this room needs is there, or OptionError says how to get it.  Nobody else needs it."""
    for name in ("torch", "cryptography"):
        try:
            found = find_spec(name) is not None
        except ValueError:
            found = False
        if not found:
            raise OptionError(f"a cluster needs {name}: `pip install penstock[cluster]` brings it")
