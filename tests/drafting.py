"""Drafts at every step."""

import pytest

from penstock.engine import speculation
from penstock.engine.draft_record import Record
from penstock.engine.drafters import Drafter
from penstock.engine.session import Session


def force_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever drafts is asked whenever it is his turn, and all he says is checked, whatever that takes."""
    monkeypatch.setattr(speculation, "best_depth", lambda chances, *_: (len(chances), 2.0))
    monkeypatch.setattr(Record, "saved", lambda *_: True)
    monkeypatch.setattr(speculation.Speculator, "_end_trial", open_it)


def open_it(speculator: speculation.Speculator, session: Session, drafter: Drafter, record: Record) -> None:
    """After a trial, whatever was right."""
    speculator._turn(session, drafter, record, True)
