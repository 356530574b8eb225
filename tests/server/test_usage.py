"""Timings: measured where tokens are made, and never absurd."""

import time
from typing import Any

from starlette.testclient import TestClient

from penstock.server.service import LoopDispatch
from penstock.server.usage import Usage, combined, timings


def test_a_rate_of_next_to_nothing_is_not_told() -> None:
    usage = Usage(prompt=40, cached=40, completion=3, begun=5.0, first=5.0000001, last=5.0002)
    told = timings(usage)
    assert (told["prompt_per_second"], told["predicted_per_second"]) == (0.0, 0.0)


def test_a_rate_counts_the_tokens_after_the_first() -> None:
    told = timings(Usage(prompt=50, cached=10, completion=11, begun=0.0, first=2.0, last=4.0, ended=60.0))
    assert (told["prompt_per_second"], told["predicted_per_second"]) == (20.0, 5.0)
    assert (told["predicted_ms"], told["predicted_per_token_ms"]) == (2000.0, 200.0)


def test_a_loop_that_is_behind_does_not_make_the_model_fast(client: TestClient, monkeypatch: Any) -> None:
    """All tokens are heard of at once here; they were not made at once."""
    run = LoopDispatch._run

    def slow(self: LoopDispatch) -> None:
        time.sleep(0.2)
        run(self)

    monkeypatch.setattr(LoopDispatch, "_run", slow)
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "temperature": 0}
    told = client.post("/v1/chat/completions", json=body).json()["timings"]
    assert told["predicted_n"] == 6
    assert 0 < told["predicted_per_second"] < 5_000


def test_drafts_are_told_where_there_were_any() -> None:
    usages = [Usage(drafted=8, accepted=5), Usage(drafted=2, accepted=2)]
    told = timings(combined(usages))
    assert (told["draft_n"], told["draft_n_accepted"]) == (10, 7)
    assert "draft_n" not in timings(Usage())
