"""What an engine can be opened with, and what it makes of it."""

import inspect
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.backend import state
from penstock.engine.options import KV_DTYPES
from penstock.errors import OptionError
from penstock.option import effective, options_of
from penstock.pocket import pocket_path
from penstock.server.http.settings import Settings
from tests.tiny import TinyModel


def test_names_are_those_of_the_tables_that_are_loaded_later() -> None:
    assert list(state.KV_DTYPES) == list(KV_DTYPES)


def test_the_signature_lists_every_option() -> None:
    listed = inspect.signature(penstock.Engine).parameters
    assert [*listed][:3] == ["path", "progress", "load"]
    for name, option in options_of(penstock.EngineOptions).items():
        assert listed[name].default == option.default
        assert option.check(option.default) == option.default
        assert option.help.endswith(".")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thread": 2}, "there is no option 'thread'; did you mean 'threads'?"),
        ({"zzz": 2}, "there is no option 'zzz'; there are device, threads"),
        ({"device": "tpu"}, "device is 'tpu', expected one of auto, cpu, cuda, cuda:N"),
        ({"device": "cuda:N"}, "device is 'cuda:N', expected one of auto, cpu, cuda, cuda:N"),
        ({"device": "cuda:x"}, "device is 'cuda:x', expected one of auto, cpu, cuda, cuda:N"),
        ({"device": "cuda:1"}, "device is 'cuda:1': this machine has no NVIDIA GPU that programs may use"),
        ({"vram": "8GiB"}, "vram is 8589934592, but the model runs on the CPU: no GPU is used"),
        ({"draft": True}, "draft is True, expected one of auto, off, mtp, dspark, ngram"),
        ({"draft": "ngram", "mtp": "m.gguf"}, "mtp is 'm.gguf', but draft is 'ngram'"),
        ({"draft": "mtp"}, "has no MTP block; mtp names a file with one"),
        ({"draft": "off", "mtp": "m.gguf"}, "mtp is 'm.gguf', but draft is 'off'"),
        ({"memory": True}, "memory is True, expected bytes, an amount such as '8GiB', 'auto' or None"),
        ({"memory": "lots"}, "memory is 'lots', expected bytes, an amount such as '8GiB', 'auto' or None"),
        ({"sessions": None}, "sessions is None, expected a whole number from 1"),
        ({"trace": 7}, "trace is 7, expected the path of a file or None"),
        ({"simulate_low_precision": "yes"}, "simulate_low_precision is 'yes', expected True or False"),
    ],
)
def test_what_cannot_be(tiny: TinyModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        penstock.Engine(tiny.folder, **options)
    assert message in str(caught.value)


def test_text_becomes_what_it_stands_for() -> None:
    options = penstock.EngineOptions(memory="8GiB", pack="x.pack", trace="t")  # type: ignore[arg-type]
    assert (options.memory, options.memory_bytes) == (8 << 30, 8 << 30)
    assert (options.pack, options.trace) == (Path("x.pack"), Path("t"))
    assert penstock.EngineOptions(memory="auto").memory_bytes is None


@pytest.mark.parametrize(
    ("draft", "used"), [("auto", "ngram+mtp"), ("mtp", "mtp"), ("ngram", "ngram"), ("off", "off")]
)
def test_the_draft_block_is_kept_or_left_out(draft: str, used: str) -> None:
    engine = penstock.Engine(pocket_path(), context=64, draft=draft, load=False)
    assert engine.checkpoint.has_mtp == ("mtp" in used)
    assert effective(engine.options, engine)["draft"] == used


def test_what_is_really_used(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"context": 64, "device": "auto", "memory": "1GiB", "trace": tmp_path / "t"}
    with penstock.Engine(pocket_path(), **chosen) as engine:
        found = effective(engine.options, engine)
    assert list(found) == list(options_of(penstock.EngineOptions))
    assert (found["device"], found["threads"]) == ("cpu", engine.options.thread_count)
    assert (found["context"], found["prefill_chunk"]) == (64, engine.plan.chunk)
    assert (found["memory"], found["streaming"]) == (1 << 30, engine.plan.mode)
    assert found["trace"] == str(tmp_path / "t")


def test_no_secret_is_shown() -> None:
    settings = Settings(api_keys=("sesame",), trace_requests=Path("sesame"))
    assert effective(settings)["parallel"] == settings.parallel
    assert "sesame" not in f"{effective(settings)}{settings}"
    with pytest.raises(OptionError, match="api_keys: expected") as caught:
        Settings(api_keys=("sesame", ""))
    assert "sesame" not in str(caught.value)
