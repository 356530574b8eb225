"""The command line as a person uses it: real processes, real output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.pocket import pocket_path
from penstock.weights.gguf_writer import PlannedTensor
from tests.weights.rewrite import Metadata, Tensors, rewrite


@pytest.fixture(scope="module")
def model() -> Path:
    return pocket_path()


def penstock_command(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1"},
        check=False,
    )


def test_run_streams_text(model: Path) -> None:
    result = penstock_command(
        "run", "-m", model, "hello there", "--max-tokens", 12, "--seed", 3, "--ignore-eos"
    )
    assert result.returncode == 0, result.stderr
    again = penstock_command(
        "run", "-m", model, "-", "--max-tokens", 12, "--seed", 3, "--ignore-eos", stdin="hello there"
    )
    assert result.stdout == again.stdout != "\n"


def test_run_json_agrees_with_python(model: Path) -> None:
    arguments = [
        "hello",
        "--raw",
        "--max-tokens",
        8,
        "--temperature",
        0,
        "--ignore-eos",
        "--top-logprobs",
        2,
        "--json",
    ]
    report = json.loads(penstock_command("run", "-m", model, *arguments).stdout)
    engine = penstock.Engine(model)
    prompt = [engine.tokenizer.bos_id, *engine.tokenizer.encode("hello")]
    sampling = penstock.Sampling(temperature=0, ignore_eos=True, top_logprobs=2)
    steps = list(engine.generate(prompt, 8, sampling))  # type: ignore[arg-type]
    assert [token["token"] for token in report["tokens"]] == [step.token for step in steps]
    assert report["tokens"][0]["top_logprobs"][0][0] == steps[0].token
    assert report["text"] == "".join(step.text for step in steps)
    assert report["usage"] == {"prompt_tokens": len(prompt), "completion_tokens": 8}
    assert report["finish_reason"] == "length"


def test_run_stops_at_a_string_that_spans_tokens(model: Path) -> None:
    arguments = ["hi", "--raw", "--max-tokens", 30, "--temperature", 0, "--ignore-eos", "--json"]
    full = json.loads(penstock_command("run", "-m", model, *arguments).stdout)
    pieces = [token["text"] for token in full["tokens"]]
    joint = next(n for n in range(5, 29) if pieces[n] and pieces[n + 1])
    stop = pieces[joint][-1] + pieces[joint + 1][0]
    cut = json.loads(penstock_command("run", "-m", model, *arguments, "--stop", stop).stdout)
    assert cut["text"] == full["text"][: full["text"].find(stop)]
    assert cut["finish_reason"] == "stop"


def test_version_and_help() -> None:
    assert penstock_command("--version").stdout == f"penstock {penstock.__version__}\n"
    for command in ("run", "inspect", "quantize", "synth"):
        assert penstock_command(command, "--help").returncode == 0


def test_inspect(model: Path) -> None:
    text = penstock_command("inspect", model, "--tensors", "--verify").stdout
    for expected in (
        "8: 1 sliding, 4 sparse, 3 heavy",
        "MXFP4",
        "routed experts",
        "blk.2.attn_q_b.weight",
        "finite",
    ):
        assert expected in text
    report = json.loads(penstock_command("inspect", model, "--json").stdout)
    assert report["bytes"] == sum(report["bytes_by_role"].values()) == sum(report["bytes_by_type"].values())
    stream = report["streamable"]
    assert stream["experts"] == 8 * 16
    assert stream["bytes"] == stream["experts"] * stream["bytes_per_expert"]
    assert report["config"]["vocab_size"] == 4096


def test_verify_finds_damage(model: Path, tmp_path: Path) -> None:
    def damage(_: Metadata, tensors: Tensors) -> None:
        old = tensors["blk.1.ffn_norm.weight"]
        data = np.full(256, np.nan, np.float32).view(np.uint8)
        tensors[old.name] = PlannedTensor(old.name, old.kind, old.shape, lambda: [data])

    path = rewrite(model, tmp_path / "m.gguf", damage)
    result = penstock_command("inspect", path, "--verify")
    assert result.returncode == 1
    assert "tensor blk.1.ffn_norm.weight: row 0 holds values that are not finite" in result.stderr


def test_synth_and_force(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    first = penstock_command(
        "synth", path, "--layers", 2, "--ratios", "0,4", "--mix", "q8_0", "--seed", 4, "--json"
    )
    assert first.returncode == 0, first.stderr
    data = path.read_bytes()
    refused = penstock_command("synth", path, "--layers", 2)
    assert refused.returncode == 1
    assert str(path) in refused.stderr
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-m", "/nowhere.gguf", "hi"], "penstock: /nowhere.gguf: no such file"),
        (["run", "-m", "MODEL", "hi", "--temperature", "-1"], "penstock: --temperature is -1.0"),
        (["run", "-m", "MODEL", "hi", "--kv-dtype", "f8"], "penstock: --kv-dtype is 'f8'"),
        (["run", "-m", "MODEL", "hi", "--raw", "--think"], "cannot go with --raw"),
        (["run", "-m", "MODEL", "hi", "--logit-bias", "x"], "expected ID=BIAS"),
        (["run", "-m", "MODEL", "hi", "--logit-bias", "99999=1"], "token 99999 is outside the vocabulary"),
        (["run", "-m", "MODEL", "word " * 60, "--context", "20"], "do not fit the context of 20"),
        (["inspect", "/nowhere"], "penstock: /nowhere: no such file"),
        (["quantize", "/nowhere", "/tmp/x.gguf", "--mix", "f32"], "penstock: /nowhere"),
        (["convert", "/nowhere", "/tmp/x.gguf", "--mix", "f32"], "penstock: /nowhere"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, model: Path) -> None:
    result = penstock_command(*(str(model) if argument == "MODEL" else argument for argument in arguments))
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_output_into_a_closed_pipe(model: Path) -> None:
    command = f"{sys.executable} -m penstock inspect {model} --tensors | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr


def test_commands_start_without_the_web() -> None:
    """What only a server or a grammar needs is imported when it is needed."""
    heavy = ("fastapi", "uvicorn", "starlette", "pydantic", "prometheus_client", "llguidance", "sqlite3")
    program = f"import sys, penstock.cli.main; print(*(set({heavy}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
