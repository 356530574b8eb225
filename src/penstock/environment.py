"""Every variable of the environment that Penstock reads under its own name."""

import os
from typing import Final, NamedTuple

from penstock.errors import OptionError


class Variable(NamedTuple):
    """values: those that it may have; none: any text but the empty one."""

    name: str
    help: str
    values: tuple[str, ...] = ()

    def read(self) -> str | None:
        """Its value; None where it is not set.  Raises OptionError for one that it cannot have."""
        found = os.environ.get(self.name)
        if found is not None and (found not in self.values if self.values else not found):
            expected = f"one of {', '.join(self.values)}" if self.values else "text"
            raise OptionError(f"{self.name} is {found!r}, expected {expected}")
        return found


API_KEY: Final = Variable(
    "PENSTOCK_API_KEY", "A key that opens the server, besides those of --api-key; launch hands it to clients."
)
ISA: Final = Variable(
    "PENSTOCK_ISA",
    "The instruction set of the kernels, in place of the best that the processor has.",
    ("scalar", "avx2", "avx512_vnni", "avx512", "neon", "neon_dot"),
)
MODELS: Final = Variable(
    "PENSTOCK_MODELS",
    "A folder of models that -m finds by name, in place of ~/.local/share/penstock/models.",
)
VARIABLES: Final = (API_KEY, ISA, MODELS)
