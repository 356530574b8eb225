"""Flags that several commands share, each said once, and the model that is used when none is named."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.pocket import pocket_path

Model = Annotated[
    Path | None,
    typer.Option(
        "--model", "-m", help="GGUF file, first split, or checkpoint folder; without it, the pocket model."
    ),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the likeliest one.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Divide logits of tokens already there.")]
PresencePenalty = Annotated[float, typer.Option(help="Subtract from tokens already generated.")]
FrequencyPenalty = Annotated[float, typer.Option(help="The same, once per occurrence.")]
Seed = Annotated[int | None, typer.Option(help="Makes the choice of tokens repeatable.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; all cores if not given.")]
KvDtype = Annotated[str, typer.Option(help="Attention state: f16, bf16 or f32.")]
Context = Annotated[int | None, typer.Option(help="Most tokens in the context.")]
Memory = Annotated[
    str, typer.Option(help="What the program may take: 8GiB, auto (what is safe now), or none (no limit).")
]
Streaming = Annotated[
    str, typer.Option(help="auto; direct: weights come from disk when needed; mmap; resident.")
]
Policy = Annotated[
    str, typer.Option(help="Which experts leave memory first: auto, lru, lfu, lfru, s3fifo or hot.")
]
Prefetch = Annotated[str, typer.Option(help="Read experts ahead that will probably be needed: auto or off.")]
Pack = Annotated[
    str, typer.Option(help="Read experts from this pack; auto: from MODEL.pack if it is there; none.")
]
Trace = Annotated[Path | None, typer.Option(help="Record to this file which experts are needed.")]
Stats = Annotated[bool, typer.Option("--stats", help="Show what was read, hit and waited for.")]
SimulateLowPrecision = Annotated[
    bool, typer.Option("--simulate-low-precision", help="Round where DeepSeek's own code rounds (FP8/FP4).")
]


def default_model() -> Path:
    """The model that a command uses when none is named: the pocket model."""
    return pocket_path()
