"""llama.cpp's /completion and /infill."""

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.server.service import Service
from tests.server.conftest import events

GREEDY: dict[str, Any] = {"prompt": "The capital of France", "temperature": 0, "n_predict": 8}


def complete(client: TestClient, path: str = "/completion", **body: Any) -> Any:
    reply: Any = client.post(path, json={**GREEDY, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_completion_is_that_of_the_other_api(client: TestClient, service: Service) -> None:
    answer = complete(client, return_tokens=True)
    body = {"prompt": GREEDY["prompt"], "temperature": 0, "max_tokens": 8}
    assert answer["content"] == client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert complete(client, "/completions")["content"] == answer["content"]
    assert service.engine.tokenizer.decode(answer["tokens"]) == answer["content"]
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["tokens_predicted"], answer["index"], answer["id_slot"]) == (8, 0, -1)
    assert answer["timings"]["predicted_n"] == 8
    assert answer["generation_settings"]["n_predict"] == 8
    assert answer["model"] == service.settings.name
    assert answer["prompt"].endswith(GREEDY["prompt"])
    assert complete(client)["tokens"] == []


def test_a_stream_ends_with_the_whole_story(client: TestClient) -> None:
    *chunks, last = events(client.post("/completion", json={**GREEDY, "stream": True}).text)
    assert [chunk["stop"] for chunk in chunks] == [False] * 7
    assert all(len(chunk["tokens"]) == 1 for chunk in chunks)
    assert "".join(chunk["content"] for chunk in [*chunks, last]) == complete(client)["content"]
    assert (last["stop"], last["stop_type"], last["tokens_predicted"]) == (True, "limit", 8)


def test_a_word_that_stops(client: TestClient) -> None:
    whole = complete(client)["content"]
    word = whole[4:6]
    for stop in ([word, "never said"], word):
        answer = complete(client, stop=stop)
        assert (answer["stop_type"], answer["stopping_word"]) == ("word", word)
        assert answer["content"] == whole[: whole.index(word)]
    *chunks, last = events(client.post("/completion", json={**GREEDY, "stop": [word], "stream": True}).text)
    assert "".join(chunk["content"] for chunk in [*chunks, last]) == whole[: whole.index(word)]


def test_the_end_of_a_text(client: TestClient) -> None:
    prompt = client.post("/apply-template", json={"messages": [{"role": "user", "content": "Hello"}]}).json()[
        "prompt"
    ]
    ids = client.post("/tokenize", json={"content": prompt}).json()["tokens"]
    answer = complete(client, prompt=ids, n_predict=-1)
    assert (answer["content"], answer["stop_type"]) == ("Hello! How can I help you?", "eos")


def test_probabilities(client: TestClient) -> None:
    answer = complete(client, n_probs=3)
    assert len(answer["completion_probabilities"]) == 8
    first = answer["completion_probabilities"][0]
    assert len(first["top_logprobs"]) == 3
    assert first["top_logprobs"][0]["id"] == first["id"]
    assert bytes(first["bytes"]).decode() == first["token"]
    assert first["logprob"] <= 0


def test_several_prompts_and_mixed_ones(client: TestClient) -> None:
    one, two = complete(client, prompt=["Hello", [5, "world"]], n_predict=2)
    assert (one["index"], two["index"]) == (0, 1)
    assert len(complete(client, n_cmpl=2, n_predict=1)) == 2
    assert complete(client, prompt=[5, "world", 7], n_predict=1)["tokens_evaluated"] >= 3


def test_a_grammar_of_its_own_kind(client: TestClient) -> None:
    grammar = 'root ::= ("yes" | "no") " " [a-c]{2}'
    assert re.fullmatch(r"(yes|no) [abc]{2}", complete(client, grammar=grammar, n_predict=-1)["content"])
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}
    schema |= {"required": ["n"], "additionalProperties": False}
    answer = complete(client, json_schema=schema, n_predict=200, temperature=1)
    assert isinstance(json.loads(answer["content"])["n"], int)


def test_a_prompt_that_is_only_read(client: TestClient) -> None:
    text = "A rather long text that nobody has read before. " * 4
    answer = complete(client, prompt=text, n_predict=0)
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")
    again = complete(client, prompt=text, n_predict=1)
    assert again["tokens_cached"] > 5


def test_fields_of_a_response(client: TestClient) -> None:
    answer = complete(
        client, response_fields=["content", "timings/prompt_n", "generation_settings/n_predict", "?"]
    )
    assert set(answer) == {"content", "timings/prompt_n", "generation_settings/n_predict"}


def test_biases(client: TestClient) -> None:
    token = complete(client, return_tokens=True)["tokens"][0]
    for bias in ([[token, False]], {str(token): -100.0}, [[token, -100]]):
        assert complete(client, logit_bias=bias, return_tokens=True)["tokens"][0] != token


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": {"prompt_string": "<img>", "multimodal_data": ["x"]}}, "images cannot be read"),
        ({"n_predict": "many"}, "n_predict"),
        ({"mirostat": 2}, "mirostat: not supported"),
        ({"dry_multiplier": 0.8}, "dry_multiplier: not supported"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"id_slot": 99}, "id_slot"),
        ({"grammar": "root ::= ("}, "grammar: Expected"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "grammar"),
        ({"json_schema": {"type": "colour"}}, "json_schema: Invalid type"),
        ({"json_schema": {"type": "integer", "minimum": 1e300}}, "json_schema: minimum"),
        ({"stop": ["x"] * 17}, "stop[16]"),
        ({"logit_bias": [[1 << 40, 1]]}, "logit_bias"),
        ({"prompt": [1 << 40]}, "prompt"),
        ({"prompt": "word " * 3000}, "context"),
    ],
)
def test_what_cannot_be_done_is_named(client: TestClient, fields: dict[str, Any], named: str) -> None:
    for stream in (False, True):
        reply: Any = client.post("/completion", json={**GREEDY, **fields, "stream": stream})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, 400)
        assert named in reply.json()["error"]["message"]


# ── infill ────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_is_filled_in(client: TestClient, service: Service) -> None:
    body = {
        "input_prefix": "def f(x):\n    ",
        "input_suffix": "\n    return y",
        "n_predict": 4,
        "temperature": 0,
    }
    answer = complete(client, "/infill", **body, prompt="y =")
    assert answer["tokens_predicted"] <= 4
    tokenizer = service.engine.tokenizer
    before, after = tokenizer.encode("def f(x):\n    "), tokenizer.encode("\n    return y")
    begin, hole, end = (tokenizer.token_id(f"<｜fim▁{name}｜>") for name in ("begin", "hole", "end"))
    assert answer["tokens_evaluated"] == 1 + len(before) + len(after) + 3 + len(tokenizer.encode("y ="))
    ids = [tokenizer.bos_id, begin, *before, hole, *after, end, *tokenizer.encode("y =")]
    assert complete(client, prompt=ids, n_predict=4)["content"] == answer["content"]
    suffix = {"prompt": "def f(x):\n    ", "suffix": "\n    return y", "max_tokens": 4, "temperature": 0}
    filled = client.post("/v1/completions", json=suffix).json()
    assert filled["usage"]["prompt_tokens"] == 1 + len(before) + len(after) + 3


def test_what_editors_send(client: TestClient) -> None:
    """All that a plug-in for editors asks for at once."""
    body = {
        "input_prefix": "a = 1\n",
        "input_suffix": "\nb = 2\n",
        "input_extra": [{"filename": "x.py", "text": "c = 3\n"}],
        "prompt": "",
        "n_predict": 16,
        "n_indent": 0,
        "top_k": 40,
        "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/predicted_n"],
    }
    assert set(complete(client, "/infill", **body)) == {"content", "timings/predicted_n"}


def test_an_infill_ends_where_its_block_does(client: TestClient) -> None:
    free = 'root ::= "x\\n    y\\nz and more"'
    answer = complete(client, grammar=free, n_predict=-1)
    assert answer["content"] == "x\n    y\nz and more"
    held = complete(client, grammar=free, n_predict=-1, n_indent=4)
    assert (held["content"], held["stop_type"]) == ("x\n    y", "limit")
