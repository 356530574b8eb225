"""A program that behaves like Claude Code: a long prompt of its own with the folder in it, then what it is asked.

It prints what that took, and stays open if it has a screen.
"""

import json
import os
import sys
import time
from urllib.request import ProxyHandler, Request, build_opener

RULES = " ".join(f"Rule {number}: never do what is forbidden by rule {number + 1}." for number in range(60))
TOOL = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}


def main() -> None:
    body = {
        "model": "any",
        "max_tokens": 4,
        "system": f"You are an agent. {RULES} You are in {os.getcwd()}.",
        "tools": [TOOL],
        "messages": [{"role": "user", "content": sys.argv[-1]}],
    }
    headers = {"Content-Type": "application/json", "x-api-key": os.environ["ANTHROPIC_AUTH_TOKEN"]}
    url = f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages"
    opener = build_opener(ProxyHandler({}))
    with opener.open(Request(url, json.dumps(body).encode(), headers)) as answer:
        print(json.dumps(json.load(answer)["usage"]), flush=True)
    if sys.stdin.isatty():
        time.sleep(600)


if __name__ == "__main__":
    main()
