"""The server's benchmark: what becomes of what the clients heard, and that mistakes are named."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import serve_cases
from benchmarks.serve import arguments, cells, run
from benchmarks.serve_cases import MIB, Bench, Counts, Row, at_least, at_most, going_on, questions
from benchmarks.serve_client import CHAT_DONE, Ask, Heard, Lane, heard_from, play
from benchmarks.served import Memory, Served
from benchmarks.tool_leaks import ask, leaks, tally, turns
from penstock.chat.deepseek_v4.markers import DSML
from penstock.errors import OptionError

COUNTS = Counts(1, 1.0, 1, 4, 1, "none", Path("unused"), keep=False)


def heard(text: str = "", number: int = 0, **more: Any) -> Heard:
    whole: dict[str, Any] = {
        "complete": True,
        "finish": "stop",
        "times": [1.0, 1.5, 2.5],
        "usage": {"completion_tokens": 3},
    }
    return Heard(number, number, 0.5, text=text, **(whole | more))


def found(rows: Sequence[Row]) -> dict[str, float | None]:
    return {row.measure: row.found for row in rows}


def test_every_way_to_lose_a_stream_is_counted() -> None:
    expected = ["one", "two", "three", "four", "five"]
    answers = [
        heard("one", 0),
        heard("one", 1),  # somebody else's
        heard("thre", 2),  # nobody's
        heard("four", 3, complete=False),
        heard("", 4, error="status 503", complete=False),
    ]
    rows = list(serve_cases._reliability("streams", answers, expected))
    assert [row.found for row in rows] == [1, 1, 1, 2]
    assert not any(row.met for row in rows)
    assert all(row.met for row in serve_cases._reliability("streams", [heard("one")], expected))


def test_latencies_and_rates() -> None:
    rows = found(list(serve_cases._latency("x", [heard(), heard()])))
    assert rows["to the first token, p50"] == 500
    assert rows["between tokens, p50"] == 750
    rows = found(list(serve_cases._throughput("x", [heard(), heard(complete=False)], seconds=4)))
    assert rows == {"requests": 0.25, "tokens": 0.75}
    assert serve_cases.decode_speed([heard(), heard()]) == 4 / 1.5
    with pytest.raises(OptionError, match="an answer failed: status 503"):
        serve_cases.decode_speed([heard(error="status 503")])


def test_memory_that_grows_is_seen_and_the_warm_up_is_not() -> None:
    seen = [Memory(float(at), (100 if at < 20 else 200 + at // 4) * MIB) for at in range(100)]
    (row,) = serve_cases._memory("x", seen, 20, 100)
    assert row.met is False
    assert row.found is not None
    assert 8 < row.found < 11  # 205 to 224 MiB
    (row,) = serve_cases._memory("x", [Memory(at.at, 200 * MIB) for at in seen], 20, 100)
    assert row.met
    assert not list(serve_cases._memory("x", seen, 97, 100))


def test_gaps_are_those_between_two_moments() -> None:
    assert serve_cases._gaps([heard(times=[0.0, 1.0, 3.0, 6.0, 10.0])], 1.0, 6.0) == [2.0, 3.0]


def test_events_become_an_answer() -> None:
    def event(**choice: Any) -> bytes:
        return b"data: " + json.dumps({"choices": [{"delta": {}, "finish_reason": None} | choice]}).encode()

    call = {"index": 0, "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 5}}'
    answer = heard_from(
        Heard(0, 0, 0.0),
        [
            (1.0, event(delta={"role": "assistant"})),
            (2.0, b": prefill"),
            (3.0, event(delta={"reasoning_content": "Hm"})),
            (4.0, event(delta={"content": "Hi"})),
            (5.0, event(delta={"tool_calls": [call]})),
            (6.0, event(delta={"tool_calls": [more]})),
            (7.0, event(finish_reason="tool_calls")),
            (7.0, usage),
            (7.0, CHAT_DONE),
        ],
    )
    assert (answer.text, answer.reasoning, answer.finish) == ("Hi", "Hm", "tool_calls")
    assert answer.calls == [{"name": "f", "arguments": "{}"}]
    assert answer.times == [3.0, 4.0, 5.0, 6.0]  # the role is nothing that the model has said
    assert (answer.tokens, answer.complete) == (5, True)
    failed = heard_from(Heard(0, 0, 0.0), [(1.0, b'data: {"error": {"message": "gone"}}')])
    assert (failed.error, failed.complete) == ("gone", False)


def test_a_real_server_and_real_clients() -> None:
    asked = questions(6)
    with Served("--threads", "1", "--parallel", "4", "--context", "2048") as server:
        alone = play(server.url, [Lane(asked)])
        lanes = [Lane([one], again=True) for one in asked]
        lanes.append(Lane([going_on([300, 301], 1900)], endless=True))
        together = play(server.url, lanes, seconds=0.5)
        (refused,) = play(server.url, [Lane([Ask("/v1/chat/completions", {"messages": []})])])
        steps = server.scheduler()["steps"]
        assert server.rss() > 10 * MIB
        server.end()
    assert steps > 0
    assert refused.error is not None
    assert refused.error.startswith("status 400")
    assert {one.lane for one in together} == set(range(7))
    assert all(one.text == alone[one.lane].text != "" for one in together if one.lane < 6)
    assert not [one for one in together if one.lane == 6][-1].complete  # given up


def test_rows_are_told() -> None:
    assert cells(at_most("a", "b", 0.5, 2, "%", note="n")) == ["a", "b", "0.500 %", "≤ 2 %", "yes", "n"]
    assert cells(at_least("a", "b", 1234.56, 2000, "×")) == ["a", "b", "1,234.6 ×", "≥ 2000 ×", "no", ""]
    assert cells(Row("a", "b", None)) == ["a", "b", "–", "", "", ""]


def test_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def case(bench: Bench) -> list[Row]:
        assert bench.counts.tokens == 7
        return [at_most("pace", "slower", 1.5, 2)]

    monkeypatch.setitem(serve_cases.CASES, "pace", case)
    path = tmp_path / "report.json"
    console = Console(quiet=True)
    run(arguments().parse_args(["--only", "pace", "--tokens", "7", "--json", str(path)]), console)
    assert json.loads(path.read_text())["rows"][0]["met"] is True
    for wrong in (["--only", "nothing"], ["--tokens", "0"], ["--seconds", "0"]):
        with pytest.raises(OptionError):
            run(arguments().parse_args(wrong), console)


# ── tool leaks ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        f"<{DSML}",
        "<DSML｜invoke",
        "a <tool_calls> b",
        '<invoke name="f">',
        "</parameter>",
        "function_calls>",
        "<｜User",
    ],
)
def test_leaks_are_found_wherever_they_are(text: str) -> None:
    assert [leak.where for leak in leaks(heard(text), 0)] == ["answer"]
    assert [leak.where for leak in leaks(heard("", reasoning=text), 0)] == ["reasoning"]


def test_arguments_must_be_an_object() -> None:
    for arguments_ in ("", "[]", "{", "1"):
        call = {"name": "f", "arguments": arguments_}
        assert [leak.where for leak in leaks(heard(calls=[call]), 0)] == ["arguments"]
    fine = heard("I invoke the parameter of a tool.", calls=[{"name": "f", "arguments": '{"a": "<｜"}'}])
    counted, leaked = tally([fine, heard("<｜", finish="length"), heard(error="no")], 0.7)
    assert (counted.turns, counted.calling, counted.calls, counted.cut) == (3, 1, 1, 1)
    assert (counted.errors, counted.leaks, len(leaked)) == (1, 1, 1)


def test_turns_of_all_kinds() -> None:
    made = list(islice(turns(1), 60))
    assert all(turn.tools and turn.messages[-1].role.value in ("user", "tool") for turn in made)
    bodies = [ask(turn, 0.7, number).body for number, turn in enumerate(made)]
    assert {body["thinking"]["type"] for body in bodies} == {"enabled", "disabled"}
    assert any(message["role"] == "tool" for body in bodies for message in body["messages"])
    assert sum("tool_choice" in body for body in bodies) == 8
    assert bodies == [ask(turn, 0.7, number).body for number, turn in enumerate(islice(turns(1), 60))]
