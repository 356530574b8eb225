"""How fast prompts are read is remembered from one run of the server to the next."""

from pathlib import Path

import pytest

import penstock
from penstock.machine.notes import notes_path
from penstock.pocket import pocket_path
from penstock.server.prefill_speed import NOTES, PrefillSpeed


class Measured:
    """An engine on which prompts were read at this pace."""

    def __init__(self) -> None:
        self.engine = penstock.Engine(pocket_path(), load=False)
        self.pace: float | None = None

    def speed(self) -> PrefillSpeed:
        return PrefillSpeed(self.engine, lambda: self.pace)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Measured()


def test_a_later_run_knows(measured: Measured) -> None:
    measured.speed().save()
    assert measured.speed().per_second is None
    measured.pace = 123.456
    assert measured.speed().per_second == 123.456
    measured.speed().save()
    measured.pace = None
    assert measured.speed().per_second == 123.46
    measured.engine = penstock.Engine(pocket_path(), load=False, threads=1, streaming="direct", memory="1GiB")
    assert measured.speed().per_second is None, "weights that come in another way come at another pace"


@pytest.mark.parametrize("damage", ["{", '{"%s": "fast"}', '{"%s": -1}', '{"%s": null}', "[]"])
def test_a_damaged_note_is_none(measured: Measured, damage: str) -> None:
    speed = measured.speed()
    notes_path(NOTES).parent.mkdir()
    notes_path(NOTES).write_text(damage.replace("%s", speed._key))
    assert speed.per_second is None
