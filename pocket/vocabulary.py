"""Trains the pocket model's tokenizer on generated text: `python -m pocket.vocabulary OUT/tokenizer.json`.

Byte-level BPE with DeepSeek's splits and DeepSeek's markers, so that the pocket model is read and prompted like
the large ones.  While it learns, numbers are cut into single digits: no merge joins two, and each stays a token.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from penstock.chat.messages import Conversation
from penstock.tokenizer.pretokenizers import PRE_TOKENIZERS
from pocket.data import conversations, knowledge

SIZE = 4096
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
MARKERS = (
    BOS, EOS, PAD, "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>",
    "<｜System｜>", "<｜EOT｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>",
    "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>",
)  # fmt: skip

# The text around tool calls, in the shape of the prompt format; the exact wording matters little here.
_CALL = '<invoke name="{name}">\n{parameters}\n</invoke>'
_PARAMETER = '<parameter name="{name}" string="{string}">{value}</parameter>'
_TOOLS_INTRO = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a block
like the following:

<tool_calls>
<invoke name="$TOOL_NAME">
<parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</parameter>
</invoke>
</tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays,
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think>
BEFORE any tool calls or final response. Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.

## Response Format:

You MUST strictly adhere to the following schema to reply:
"""


def train(size: int = SIZE, characters: int = 9_000_000, seed: int = 0) -> LibraryTokenizer:
    """The trained tokenizer; the same arguments give the same tokens."""
    tokenizer = LibraryTokenizer(BPE())
    final = PRE_TOKENIZERS["joyai-llm"]()
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(r"\p{N}"), "isolated"), final]  # what is isolated stays apart in the splits that follow
    )
    trainer = BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(MARKERS),
        initial_alphabet=sorted(ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_texts(characters, seed), trainer)
    tokenizer.pre_tokenizer = final
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def write(path: Path, tokenizer: LibraryTokenizer) -> None:
    """`tokenizer.json`, and beside it the settings that name the beginning and the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    settings = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "add_bos_token": False}
    _write_json(path.with_name("tokenizer_config.json"), settings)
    ids = {"bos_token_id": tokenizer.token_to_id(BOS), "eos_token_id": tokenizer.token_to_id(EOS)}
    _write_json(path.with_name("generation_config.json"), ids)


def text_of(conversation: Conversation) -> Iterator[str]:
    """The texts that a prompt is made of, without its markers."""
    if conversation.tools:
        yield _TOOLS_INTRO
        for tool in conversation.tools:
            yield json.dumps(tool, ensure_ascii=False) + "\n"
    if conversation.response_schema is not None:
        yield json.dumps(conversation.response_schema, ensure_ascii=False)
    for message in conversation.messages:
        if message.reasoning:
            yield message.reasoning
        if message.tool_call_id:
            yield f"<tool_result>{message.content}</tool_result>"
        elif message.content:
            yield message.content
        for call in message.tool_calls:
            parameters = [
                _PARAMETER.format(
                    name=name,
                    string=str(isinstance(value, str)).lower(),
                    value=value if isinstance(value, str) else json.dumps(value),
                )
                for name, value in json.loads(call.arguments).items()
            ]
            yield (
                "\n\n<tool_calls>\n"
                + _CALL.format(name=call.name, parameters="\n".join(parameters))
                + "\n</tool_calls>"
            )


def _texts(characters: int, seed: int) -> Iterator[str]:
    for _, subject, answer in knowledge.FACTS * 40:  # rare words that matter: the project's own
        yield f"What is {subject}? {answer}"
    for conversation in conversations(seed, worker=-1):
        for text in text_of(conversation):
            characters -= len(text)
            yield text
        if characters <= 0:
            return


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the pocket model's tokenizer.")
    parser.add_argument("out", type=Path, help="where to write tokenizer.json")
    path = parser.parse_args().out
    tokenizer = train()
    write(path, tokenizer)
    print(f"{path}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
