"""The draft block is trained in the way in which it is used."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from penstock.chat.driver import ChatDriver
from penstock.chat.messages import question
from penstock.pocket import pocket_path
from pocket.batches import Document
from pocket.config import PocketConfig
from pocket.draft import PLACES, Teacher, Trunk, guesses
from pocket.draft_file import read_block, write_block


@pytest.fixture(scope="module")
def trunk() -> Trunk:
    return Trunk(pocket_path(), threads=1)


@torch.no_grad()
def test_guesses_in_training_are_the_engines(trunk: Trunk) -> None:
    engine = trunk.engine
    ids = ChatDriver(engine).reply(question("Tell me a story about a fox.")).prompt.ids
    session = engine.session()
    logits = session.feed(ids)
    assert logits is not None
    token = int(logits.argmax())
    found = engine.stepper.draft(session, token, PLACES, 0.0)
    text = [*ids, token, *(guess for guess, _ in found)]
    lesson = trunk.lesson([Document([5] * 40, [0.0] * 40), Document(text, [1.0] * len(text))])
    anchor = torch.tensor([40 + len(ids) - 1])
    teacher = Teacher(engine.checkpoint)
    for (guess, chance), (streams, _) in zip(
        found, guesses(teacher.draft, teacher.embed, lesson, anchor, PLACES), strict=True
    ):
        expected = F.linear(teacher.draft.norm(teacher.fold(streams)), teacher.head).softmax(-1)[0]
        assert int(expected.argmax()) == guess
        assert float(expected[guess]) == pytest.approx(chance, abs=0.02)


def test_a_block_goes_into_the_file_as_it_came_out(trunk: Trunk, tmp_path: Path) -> None:
    checkpoint = trunk.engine.checkpoint
    block = read_block(checkpoint, PocketConfig())
    write_block(block, checkpoint, tmp_path / "same.gguf")
    assert (tmp_path / "same.gguf").read_bytes() == pocket_path().read_bytes()
    with torch.no_grad():
        block.norm.weight.mul_(2)
    write_block(block, checkpoint, tmp_path / "other.gguf")
    other, own = (tmp_path / "other.gguf").read_bytes(), pocket_path().read_bytes()
    norm = checkpoint.index["mtp.0.norm.weight"]
    assert other[: norm.offset] == own[: norm.offset]
    assert other[norm.offset + norm.nbytes :] == own[norm.offset + norm.nbytes :]
    assert other != own
