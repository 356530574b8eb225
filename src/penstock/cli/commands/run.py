"""`penstock run`: one prompt, streamed."""

from functools import partial
from typing import Annotated

import typer

from penstock.chat.messages import Thinking, parse_thinking
from penstock.cli import options
from penstock.cli.given_text import given_text
from penstock.engine.options import EngineOptions
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError


@options.with_flags
def run_command(
    given: partial[Sampling],
    chosen: EngineOptions,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="What to say to the model.  Text on standard input goes before it; '-' is only that."
        ),
    ] = None,
    model: options.Model = None,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", help="A text to read first; may be repeated.", metavar="PATH"),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Feed the prompt as it is, without the chat format.")
    ] = False,
    system: Annotated[str, typer.Option(help="System text placed before the prompt.")] = "",
    think: options.Think = "off",
    max_tokens: options.MaxTokens = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(help="ID=BIAS, may be repeated.", rich_help_panel="Sampling", metavar="ID=BIAS"),
    ] = None,
    stats: options.Stats = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object when done.")] = False,
) -> None:
    """Generate text from a prompt.

    The exit status is 0 for an answer, also one that --max-tokens cuts; 3 if thinking left no room for one, or the
    context was full; 1 for an error; 2 for a wrong flag; 130 after Ctrl-C.

    Example: cat notes.txt | penstock run -m model.gguf "Summarise this."
    """
    sampling = given(logit_bias=parse_biases(logit_bias or []))
    thinking = parse_thinking(think)
    options.check_max_tokens(max_tokens)
    if raw and (system or thinking is not Thinking.OFF):
        raise OptionError("--system and --think belong to the chat format; they cannot go with --raw")
    text = given_text(prompt, file or [], raw)
    # What computes is loaded when there is something to compute.
    from penstock.cli.generate import Asked, generate

    asked = Asked(text, system, thinking, raw, sampling, max_tokens)
    raise typer.Exit(generate(model, chosen, asked, stats, json_output))


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
