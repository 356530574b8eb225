"""`penstock run`: one prompt, streamed."""

import json
import sys
import time
from functools import partial
from itertools import chain
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.chat.driver import ChatDriver
from penstock.chat.events import Event, TextDelta, Turn
from penstock.chat.messages import question
from penstock.cli import options
from penstock.cli.opening import open_engine, stats_line
from penstock.cli.terminal import Display
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.sampling import Sampling
from penstock.engine.steps import Step
from penstock.errors import OptionError, TokenError


@options.with_flags
def run_command(
    prompt: Annotated[str, typer.Argument(help="What to say to the model; '-' reads standard input.")],
    given: partial[Sampling],
    chosen: EngineOptions,
    model: options.Model = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Feed the prompt as it is, without the chat format.")
    ] = False,
    system: Annotated[str, typer.Option(help="System text placed before the prompt.")] = "",
    think: Annotated[bool, typer.Option("--think", help="Let the model reason before it answers.")] = False,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to generate.")] = 256,
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="ID=BIAS, may be repeated.", rich_help_panel="Sampling")
    ] = None,
    stats: options.Stats = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object when done.")] = False,
) -> None:
    """Generate text from a prompt.

    Example: penstock run -m model.gguf "Why is the sky blue?" --max-tokens 100
    """
    sampling = given(logit_bias=parse_biases(logit_bias or []))
    text = sys.stdin.read() if prompt == "-" else prompt
    begin = time.perf_counter()
    engine = open_engine(model, chosen)
    reply = None if raw else ChatDriver(engine).reply(question(text, system, think), sampling)
    ids = _raw_ids(engine, text, system, think) if reply is None else reply.prompt.ids
    opened = time.perf_counter()
    before = engine.stats()
    stream = engine.generate(ids, max_tokens, sampling if reply is None else reply.sampling)
    steps: list[Step] = []
    turn = Turn() if reply is None else reply.turn
    # Redirected, only the answer is in the file; the reasoning still shows on the terminal.
    answer = Console(highlight=False, soft_wrap=True)
    display = Display(answer, answer if answer.is_terminal else Console(stderr=True, soft_wrap=True))
    with Console(stderr=True).status(f"reading {len(ids):,} tokens …"):  # shown only on a terminal
        opening = next(stream)
    first = time.perf_counter()
    for step in chain([opening], stream):
        steps.append(step)
        if reply is None:  # without the chat format all of it is text
            events: list[Event] = [TextDelta(step.text)]
            turn.add(events)
        else:
            events = reply.push(step).events
        if not json_output:
            display.show(events)
        if reply is not None and reply.finished:
            break
    done = time.perf_counter()
    if json_output:
        report = _report(ids, steps, turn, opened - begin, first - opened, done - first)
        if stats:
            report["storage"] = engine.stats()
        print(json.dumps(report, ensure_ascii=False))
    else:
        display.finish()
    if stats and not json_output:
        Console(stderr=True).print(
            stats_line(before, engine.stats(), done - opened), style="dim", highlight=False
        )
    engine.close()


def _raw_ids(engine: Engine, text: str, system: str, think: bool) -> list[int]:
    if system or think:
        raise OptionError("--system and --think belong to the chat format; they cannot go with --raw")
    bos = engine.tokenizer.bos_id
    ids = [*([] if bos is None else [bos]), *engine.tokenizer.encode(text)]
    if not ids:
        raise TokenError("the prompt is empty")
    return ids


def parse_biases(pairs: list[str]) -> dict[int, float]:
    """["17=-2.5"] → {17: -2.5}"""
    result = {}
    for pair in pairs:
        token, _, bias = pair.partition("=")
        try:
            result[int(token)] = float(bias)
        except ValueError:
            raise OptionError(f"--logit-bias {pair!r}: expected ID=BIAS, for example 17=-2.5") from None
    return result


def _report(
    ids: list[int], steps: list[Step], turn: Turn, load: float, prefill: float, decode: float
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
    return {
        "text": "".join(turn.content),
        **({"reasoning": "".join(turn.reasoning)} if turn.reasoning else {}),
        "finish_reason": turn.finish_reason or steps[-1].finish_reason,
        "tokens": tokens,
        "usage": {"prompt_tokens": len(ids), "completion_tokens": len(steps)},
        "timings": {
            "load_s": round(load, 4),
            "prompt_s": round(prefill, 4),
            "prompt_per_second": round(len(ids) / prefill, 2),
            "predicted_s": round(decode, 4),
            "predicted_per_second": round((len(steps) - 1) / decode, 2) if len(steps) > 1 else None,
        },
    }
