"""How fast prompts are read is remembered from one run of the server to the next."""

from pathlib import Path

import pytest

import penstock
from penstock.engine.scheduler import Scheduler
from penstock.machine.notes import notes_path
from penstock.pocket import pocket_path
from penstock.server.prefill_speed import NOTES, PrefillSpeed


class Measured(Scheduler):
    """One that has read prompts at this pace."""

    pace: float | None = None

    @property
    def prefill_per_second(self) -> float | None:
        return self.pace


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Measured(penstock.Engine(pocket_path(), load=False))


def test_a_later_run_knows(scheduler: Measured) -> None:
    def now() -> PrefillSpeed:
        return PrefillSpeed(scheduler.engine, scheduler)

    now().save()
    assert now().per_second is None
    scheduler.pace = 123.456
    assert now().per_second == 123.456
    now().save()
    scheduler.pace = None
    assert now().per_second == 123.46
    other = penstock.Engine(pocket_path(), load=False, threads=1, streaming="direct", memory="1GiB")
    assert PrefillSpeed(other, scheduler).per_second is None, (
        "weights that come in another way come at another pace"
    )


@pytest.mark.parametrize("damage", ["{", '{"%s": "fast"}', '{"%s": -1}', '{"%s": null}', "[]"])
def test_a_damaged_note_is_none(scheduler: Measured, damage: str) -> None:
    speed = PrefillSpeed(scheduler.engine, scheduler)
    notes_path(NOTES).parent.mkdir()
    notes_path(NOTES).write_text(damage.replace("%s", speed._key))
    assert speed.per_second is None
