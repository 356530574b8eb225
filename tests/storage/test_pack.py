"""Packs: the same bits with and without one, and a pack that does not check out is refused."""

import hashlib
import json
import re
import shutil
import struct
import warnings
from collections.abc import Callable
from errno import EIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.errors import ModelFormatError, OptionError, ReadError
from penstock.storage.pack import FIXED, MAGIC, PackedSource, pack_path, sealed
from penstock.storage.pack_writer import write_pack
from penstock.storage.reader import BLOCK
from penstock.storage.source import ExpertSource
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from tests.fuzz.mutate import mutate
from tests.storage.packs import copied, make_model

PROMPT = [(7 * number + 3) % 256 for number in range(40)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: (
        st.lists(values) | st.dictionaries(st.sampled_from(("model", "experts", "blocks", "x")), values)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module", params=["q2", "q8_0", "mxfp4", "official"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(request.param, tmp_path_factory.mktemp("pack"))


def answers(model: Path, **options: Any) -> tuple[list[NDArray[np.float32]], str]:
    """Logits of a prompt and of tokens after it, a draft's if there is one, and where experts came from."""
    draft = "mtp" if model.is_dir() else "off"  # for itself it is left out where experts come from disk
    with Engine(model, context=256, draft=draft, **options) as engine:
        session = engine.session()
        found = [session.feed(PROMPT, logits="all"), *(session.feed([token]) for token in range(4))]
        if engine.checkpoint.has_mtp:
            found.append(engine.mtp_logits(session, 5))
        return [logits for logits in found if logits is not None], engine.stats()["experts_from"]


def same(mine: list[NDArray[np.float32]], others: list[NDArray[np.float32]]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(mine, others, strict=True))


# ── bits ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_bits_with_and_without_a_pack(model: Path, tmp_path: Path) -> None:
    pack = tmp_path / "experts"
    write_pack(open_checkpoint(model), pack)
    budget = Engine(model, context=256).plan.smallest
    plain, source = answers(model)
    assert source == str(model)
    for options in ({"streaming": "direct", "memory": budget}, {"streaming": "resident"}):
        found, source = answers(model, pack=pack, **options)
        assert source == str(pack)
        assert same(found, plain)


def test_every_expert_is_one_read_of_the_same_bytes(model: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(model)
    size = write_pack(checkpoint, tmp_path / "experts")
    own, packed = ExpertSource(checkpoint), PackedSource(checkpoint, tmp_path / "experts")
    assert size == (tmp_path / "experts").stat().st_size
    end = 0
    for key in range(checkpoint.config.layer_count * own.experts):
        (stretch,) = packed.bundle(key).stretches
        assert stretch.offset % BLOCK == 0
        assert stretch.offset >= end
        end = stretch.offset + stretch.length
        for mine, theirs in zip(packed.infos(key), own.infos(key), strict=True):
            for new, old in ((mine, theirs), (mine.scale, theirs.scale)):
                assert (new is None) == (old is None)
                if new is not None and old is not None:
                    assert (new.kind, new.shape) == (old.kind, old.shape)
                    moved, stored = (info.file.view(info.offset, info.nbytes) for info in (new, old))
                    assert np.array_equal(moved, stored)
    assert end == size
    assert packed.slot_bytes == own.slot_bytes  # what is planned and cached does not depend on packs


def test_a_draft_block_stays_in_the_models_file(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_model("official", tmp_path))
    write_pack(checkpoint, tmp_path / "experts")
    own, packed = ExpertSource(checkpoint), PackedSource(checkpoint, tmp_path / "experts")
    assert packed.infos(packed.key("mtp.0", 3)) == own.infos(own.key("mtp.0", 3))
    assert packed.infos(packed.key("blk.1", 3)) != own.infos(own.key("blk.1", 3))


def test_experts_really_come_from_the_pack(packed: Path, tmp_path: Path) -> None:
    model, pack = copied(packed, tmp_path)
    source = PackedSource(open_checkpoint(model), pack)
    with open(pack, "r+b") as file:
        for key in range(source.experts):
            file.seek(source.infos(key)[0].offset)
            file.write(bytes(64))
    assert not same(answers(model, streaming="resident")[0], answers(packed)[0])


def test_a_failed_read_names_the_pack(packed: Path) -> None:
    with Engine(packed, context=256, streaming="resident") as engine:
        reader = engine.storage.reader
        assert reader is not None
        reader.inject(EIO, reader.open(pack_path(packed)), 1000)
        with pytest.raises(ReadError, match=r"expert \d+ of blk\.0: .*q2\.gguf\.pack"):
            engine.session().feed(PROMPT)


# ── which file is used ───────────────────────────────────────────────────────────────────────────────────────


def test_a_pack_beside_the_model_is_found(packed: Path) -> None:
    beside = str(pack_path(packed))
    assert answers(packed, streaming="resident")[1] == beside
    assert answers(packed, streaming="resident", pack=beside)[1] == beside
    assert answers(packed, streaming="resident", pack=None)[1] == str(packed)
    assert answers(packed, streaming="mmap")[1] == str(packed)


def test_a_pack_that_does_not_fit(packed: Path, tmp_path: Path) -> None:
    """By itself it is left alone with a warning; by name it is an error."""
    other = tmp_path / "other.gguf"
    synth(other, width="tiny", ratios=(0, 4, 128), hash_layers=1, mix="q2", seed=1)
    shutil.copy(pack_path(packed), pack_path(other))
    with pytest.warns(UserWarning, match=r"other\.gguf\.pack: made from another model"):
        assert answers(other, streaming="resident")[1] == str(other)
    for mode in ("resident", "mmap"):
        with pytest.raises(ModelFormatError, match=r"other\.gguf\.pack: made from another model"):
            answers(other, streaming=mode, pack=pack_path(other))
    with pytest.raises(ModelFormatError, match="nothing there"):
        answers(other, pack=tmp_path / "nothing there")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answers(other, pack=None)[1] == str(other)


def test_a_wrong_option() -> None:
    with pytest.raises(OptionError, match="pack is 7, expected 'auto', the path of a file or None"):
        EngineOptions(pack=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "expected"), [("a/m.gguf", "a/m.gguf.pack"), ("a/folder/", "a/folder.pack")]
)
def test_where_a_pack_is_looked_for(model: str, expected: str) -> None:
    assert pack_path(Path(model)) == Path(expected)
    here = pack_path(Path())
    assert here == Path.cwd().with_name(Path.cwd().name + ".pack")


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_differs_only_in_its_experts(packed: Path, tmp_path: Path) -> None:
    """The fingerprint looks at no expert's bytes, so they are compared."""
    model, pack = copied(packed, tmp_path)
    info = open_checkpoint(model).index["blk.1.ffn_down_exps.weight"]
    with open(model, "r+b") as file:
        file.seek(info.offset)
        file.write(np.random.default_rng(0).integers(0, 256, info.nbytes, np.uint8).tobytes())
    checkpoint = open_checkpoint(model)
    assert checkpoint.fingerprint() == open_checkpoint(packed).fingerprint()
    with pytest.raises(ModelFormatError, match=r"expert 1 of blk\.1: down has other bytes"):
        PackedSource(checkpoint, pack)


def change_header(edit: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """The same pack with another header, whose checksum fits."""

    def change(data: bytes) -> bytes:
        length = FIXED.unpack_from(data)[2]
        header = json.loads(data[FIXED.size : FIXED.size + length])
        behind = data[len(sealed(header)) :]
        edit(header)
        return sealed(header) + behind

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "2,756,607 bytes, expected 2,756,608"),
        (lambda data: data + b"x", "write the pack again"),
        (lambda data: data[:20], "not a pack"),
        (lambda _: b"", "empty"),
        (lambda data: b"GGUF" + data[4:], "not a pack"),
        (lambda data: data[:8] + struct.pack("<I", 2) + data[12:], "version 2, expected 1"),
        (lambda data: data[:12] + struct.pack("<I", 1 << 31) + data[16:], "header of 2,147,483,648 bytes"),
        (lambda data: data[:60] + b"?" + data[61:], "checksum"),
        (change_header(lambda header: header.update(model="0")), "fingerprint of the model '0', expected '"),
        (change_header(lambda header: header.update(experts=8)), "experts in a block 8, expected 16"),
        (change_header(lambda header: header["blocks"].pop()), "made for None, expected {'name': 'blk.2'"),
        (change_header(lambda header: header.update(blocks=7)), "expected {'name': 'blk.0'"),
        (
            change_header(lambda header: header["blocks"][1].update(expert_bytes=4096)),
            "made for {'name': 'blk.1', 'expert_bytes': 4096",
        ),
    ],
)
def test_a_pack_that_does_not_check_out(
    packed: Path, tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    pack = tmp_path / "changed.pack"
    pack.write_bytes(change(pack_path(packed).read_bytes()))
    with pytest.raises(ModelFormatError) as refused:
        PackedSource(open_checkpoint(packed), pack)
    assert message in str(refused.value)
    assert str(pack) in str(refused.value)


@given(
    mutations=st.randoms(use_true_random=False),
    reseal=st.booleans(),
    text=st.none() | st.binary(max_size=64) | JSON.map(lambda value: json.dumps(value).encode()),
)
@settings(max_examples=200)
def test_only_format_errors_come_out_of_a_header(
    packed: Path, scratch: Path, mutations: Random, reseal: bool, text: bytes | None
) -> None:
    """Mutated headers and arbitrary ones, also with a checksum that fits, before a hole as long as the experts."""
    whole = pack_path(packed).read_bytes()
    if text is None:
        data = mutate(whole[: FIXED.size + FIXED.unpack_from(whole)[2]], mutations)
    else:
        data = FIXED.pack(MAGIC, 1, len(text), bytes(32)) + text
    if reseal and len(data) > FIXED.size:
        length = min(FIXED.unpack_from(data)[2], len(data) - FIXED.size)
        digest = hashlib.sha256(data[FIXED.size : FIXED.size + length]).digest()
        data = data[:12] + struct.pack("<I", length) + digest + data[FIXED.size :]
    with open(scratch, "wb") as file:
        file.write(data)
        file.truncate(max(len(data), len(whole)))
    with pytest.raises(ModelFormatError, match=re.escape(str(scratch))):
        PackedSource(open_checkpoint(packed), scratch)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("fuzz") / "fuzzed.pack"
    return path
