"""How fast prompts are read here; also known before the first one of this run, if there was an earlier run."""

from collections.abc import Callable

from penstock.engine.engine import Engine
from penstock.machine.notes import recall, remember

NOTES = "prefill"


class PrefillSpeed:
    """Remembered by model, device and the way that weights come, in the user's cache folder.  measured: what is
    known of this run"""

    def __init__(self, engine: Engine, measured: Callable[[], float | None]):
        self._engine, self._measured = engine, measured

    @property
    def per_second(self) -> float | None:
        """Tokens; None where no prompt has ever been read."""
        measured = self._measured()
        if measured is not None:
            return measured
        found = recall(NOTES).get(self._key)
        return float(found) if isinstance(found, int | float) and found > 0 else None

    def save(self) -> None:
        """Remembers what was measured in this run, if anything was."""
        if (measured := self._measured()) is not None:
            remember(NOTES, self._key, round(measured, 2))

    @property
    def _key(self) -> str:
        options, plan = self._engine.options, self._engine.plan
        return f"{self._engine.fingerprint} {self._engine.backend.name} {options.thread_count} {plan.mode}"
