"""One answer: from what was asked to text on the terminal, or to one JSON object."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.chat.driver import ChatDriver, Reply
from penstock.chat.events import Done, Event, TextDelta, Turn
from penstock.chat.messages import Thinking, question
from penstock.cli.answer_stats import AnswerStats
from penstock.cli.ending import ending
from penstock.cli.opening import open_engine
from penstock.cli.terminal import Display, PrefillLine, outputs
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.progress import PrefillProgress
from penstock.engine.sampling import Sampling
from penstock.engine.steps import Step
from penstock.errors import TokenError


@dataclass(frozen=True)
class Asked:
    """max_tokens: None for as many as come before the model or the context ends."""

    text: str
    system: str
    thinking: Thinking
    raw: bool
    sampling: Sampling
    max_tokens: int | None


def generate(model: Path | None, chosen: EngineOptions, asked: Asked, stats: bool, as_json: bool) -> int:
    """Answers, and returns the exit status."""
    answer, notes = outputs()
    begin = time.perf_counter()
    with open_engine(model, chosen) as engine:
        loaded = time.perf_counter() - begin
        prompt = _prompt(engine, asked)
        line, display = PrefillLine(notes), Display(answer, notes)
        line(PrefillProgress(0, len(prompt.ids), 0))
        timing = AnswerStats(engine)
        timing.read = len(prompt.ids)
        steps: list[Step] = []
        try:
            for step in engine.generate(prompt.ids, asked.max_tokens, prompt.sampling, progress=line):
                line.erase()
                timing.token()
                steps.append(step)
                events = prompt.push(step)
                if not as_json:
                    display.show(events)
                if prompt.turn.finish_reason is not None:
                    break
        finally:  # also where Ctrl-C ends it: what was said stands in lines of its own
            line.erase()
            if not as_json:
                display.finish()
        end = ending(prompt.turn, len(steps), asked.max_tokens, engine.context)
        if as_json:
            report = _report(prompt, steps, loaded, timing, timing.drafts(engine.stats()))
            if stats:
                report["storage"] = engine.stats()
            print(json.dumps(report, ensure_ascii=False))
        else:
            timing.show(notes, stats)
    if end is not None:
        notes.note(f"penstock: {end.words}")
    return 0 if end is None else end.status


class _Prompt:
    """ids      what the model reads
    push     what a step means; the last one's turn has a reason why it ended"""

    def __init__(self, ids: list[int], sampling: Sampling, turn: Turn, push: Callable[[Step], list[Event]]):
        self.ids, self.sampling, self.turn, self.push = ids, sampling, turn, push


def _prompt(engine: Engine, asked: Asked) -> _Prompt:
    if asked.raw:
        return _raw_prompt(engine, asked)
    conversation = question(asked.text, asked.system, asked.thinking)
    reply: Reply = ChatDriver(engine).reply(conversation, asked.sampling)
    return _Prompt(reply.prompt.ids, reply.sampling, reply.turn, lambda step: reply.push(step).events)


def _raw_prompt(engine: Engine, asked: Asked) -> _Prompt:
    """Without the chat format all of it is text."""
    bos = engine.tokenizer.bos_id
    ids = [*([] if bos is None else [bos]), *engine.tokenizer.encode(asked.text)]
    if not ids:
        raise TokenError("the prompt is empty")
    turn, tokens = Turn(), list[int]()

    def push(step: Step) -> list[Event]:
        tokens.append(step.token)
        events: list[Event] = [TextDelta(step.text)]
        if step.finish_reason is not None:
            said = engine.tokenizer.decode(tokens) if step.finish_reason == "stop" else ""
            found = next((stop for stop in asked.sampling.stop if stop in said), None)
            events.append(Done(step.finish_reason, found))
        turn.add(events)
        return events

    return _Prompt(ids, asked.sampling, turn, push)


def _report(
    prompt: _Prompt, steps: list[Step], load: float, timing: AnswerStats, drafts: tuple[int, int]
) -> dict[str, Any]:
    tokens = [
        {
            "token": step.token,
            "logprob": step.logprob,
            "text": step.text,
            **({"top_logprobs": step.top_logprobs} if step.top_logprobs else {}),
        }
        for step in steps
    ]
    turn, prefill, decode = prompt.turn, timing.prefill, timing.decode
    drafted, accepted = drafts
    return {
        "text": "".join(turn.content),
        **({"reasoning": "".join(turn.reasoning)} if turn.reasoning else {}),
        "finish_reason": turn.finish_reason or steps[-1].finish_reason,
        "tokens": tokens,
        "usage": {"prompt_tokens": len(prompt.ids), "completion_tokens": len(steps)},
        "timings": {
            "load_s": round(load, 4),
            "prompt_s": round(prefill, 4),
            "prompt_per_second": round(len(prompt.ids) / prefill, 2),
            "predicted_s": round(decode, 4),
            "predicted_per_second": round((len(steps) - 1) / decode, 2) if len(steps) > 1 else None,
            **({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}),
        },
    }
