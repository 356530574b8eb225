"""What the pocket model still does in contexts longer than the 8,192 tokens that it was trained on.

    python -m benchmarks.long_context [--lengths 6000,12000,16000,32000] [--count 10] [--tasks look-up,sum,tool]
                                      [--factor 4]

look-up   a fact of a text, which may stand anywhere in it
sum       two numbers of two digits, asked after a text that has nothing to do with them
tool      the right call of one tool among as many as fit

Greedy; what is right, and how many tokens the prompts had.  --factor tries other factors of its rotary scaling (YaRN)
in a copy of the file: the context for which its slow rotations are slowed down, in multiples of 2,048 tokens.
"""

import argparse
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median

import penstock
from penstock.chat.deepseek_v4.render import render
from penstock.chat.messages import Message, Role, Thinking
from penstock.pocket import pocket_path
from pocket.answer import answers
from pocket.data import Problem, problem
from pocket.data.grammar import pick
from pocket.data.lookup import tokens
from pocket.data.toolbox import new_tool
from pocket.data.words import SENTENCES
from pocket.eval import two_digit_addition

LONGEST = 1 << 16  # that a copy of the file allows
TOOL = 80  # tokens of a tool's description, about


def look_up(rng: Random, length: int) -> Problem:
    return problem("lookup", rng, length=length, thinking=Thinking.OFF)


def sum_after_text(rng: Random, length: int) -> Problem:
    asked = two_digit_addition(thinking=False)(rng)
    text, size = [], 50.0
    while size < length:
        text.append(pick(SENTENCES, rng))
        size += tokens(text[-1])
    messages = (Message(Role.SYSTEM, " ".join(text)), *asked.conversation.messages)
    return replace(asked, conversation=replace(asked.conversation, messages=messages))


def tool_among_many(rng: Random, length: int) -> Problem:
    asked = problem("tools", rng, thinking=Thinking.OFF)
    while not asked.reference.tool_calls:  # the result is there already
        asked = problem("tools", rng, thinking=Thinking.OFF)
    tools = {tool["name"]: tool for tool in asked.conversation.tools}
    while len(tools) * TOOL < length:
        tool = new_tool(rng)
        tools.setdefault(tool.name, tool.schema())
    offered = tuple(rng.sample(list(tools.values()), len(tools)))
    return replace(asked, conversation=replace(asked.conversation, tools=offered))


TASKS: dict[str, Callable[[Random, int], Problem]] = {
    "look-up": look_up,
    "sum": sum_after_text,
    "tool": tool_among_many,
}


@contextmanager
def with_factor(factor: float) -> Iterator[Path]:
    """A copy of the shipped file with this factor, and a context that every length fits in."""
    model = bytearray(pocket_path().read_bytes())
    values = {"context_length": ("<I", LONGEST), "rope.scaling.factor": ("<f", factor)}
    for name, (form, value) in values.items():
        key = f"deepseek4.{name}".encode()
        struct.pack_into(form, model, model.index(key) + len(key) + 4, value)  # after the type of the value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pocket.gguf"
        path.write_bytes(model)
        yield path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_context")
    parser.add_argument("--lengths", default="6000,12000,16000,32000", help="tokens of the prompts, about")
    parser.add_argument("--count", type=int, default=10, help="problems of each kind at each length")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--factor", default="4", help="factors of the rotary scaling; the model was taught 4")
    options = parser.parse_args()
    print(f"{'factor':>6} {'task':8} {'tokens':>7} {'right':>7}")
    for factor in map(float, options.factor.split(",")):
        with with_factor(factor) as path, penstock.Engine(path, context=LONGEST) as engine:
            for task in options.tasks.split(","):
                for length in map(int, options.lengths.split(",")):
                    rng = Random(f"{task}/{length}")
                    problems = [TASKS[task](rng, length) for _ in range(options.count)]
                    sizes = [len(render(asked.conversation).ids(engine.tokenizer)) for asked in problems]
                    # One at a time: sixteen sessions of such lengths would be a gigabyte.
                    right = sum(asked.check(answers(engine, [asked], 120)[0]) for asked in problems)
                    shown = f"{factor:6g} {task:8} {median(sizes):7,.0f} {right:4}/{options.count}"
                    print(shown, flush=True)


if __name__ == "__main__":
    main()
