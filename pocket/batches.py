"""Conversations to training batches: rendered in the chat format, tokenised, packed.

Documents are placed one after another in rows of the batch, each at a multiple of 128.  What an assistant says counts
fully in the loss; what others say counts a little, so that the model learns the language of its prompts too.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from penstock.chat.deepseek_v4.render import render
from penstock.chat.messages import Conversation, Role
from penstock.tokenizer import Tokenizer, tokenizer_from_json
from pocket.config import ALIGN, Batch
from pocket.data import conversations, sample

POOL = 32  # documents to choose from when a row has little room left
OTHERS = 0.05  # weight of tokens that the model will not have to say itself
LOOK_UP = 1.5  # weight of answers about long texts: few tokens, and slow to learn


class Document(NamedTuple):
    ids: list[int]
    weights: list[float]


def encode(conversation: Conversation, tokenizer: Tokenizer, answers: float = 1.0) -> Document:
    """Token ids of a finished conversation and how much predicting each of them counts: what assistants say as much
    as `answers`."""
    ids: list[int] = []
    weights: list[float] = []
    prompt = render(conversation, generate=False)
    text, weight = "", OTHERS

    def flush() -> None:
        nonlocal text
        if text:
            tokens = tokenizer.encode(text)
            ids.extend(tokens)
            weights.extend([weight] * len(tokens))
            text = ""

    for piece in prompt.pieces:
        speaker = None if piece.message is None else conversation.messages[piece.message].role
        own = answers if speaker is Role.ASSISTANT else OTHERS
        if own != weight or piece.special:
            flush()
        weight = own
        if piece.special:
            token = tokenizer.token_id(piece.text)
            assert token is not None, piece.text
            ids.append(token)
            weights.append(weight if speaker is Role.ASSISTANT else 0.0)
        else:
            text += piece.text
    flush()
    return Document(ids, weights)


class Packed(IterableDataset[tuple[torch.Tensor, ...]]):
    """Endless rows of `length` tokens.  `long_share` of the tokens come from look-ups as long as a row."""

    def __init__(self, tokenizer: Path, length: int, rows: int, seed: int, long_share: float):
        self.tokenizer, self.length, self.rows = tokenizer, length, rows
        self.seed, self.long_share = seed, long_share

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        info = get_worker_info()
        worker = info.id if info else 0
        torch.set_num_threads(1)
        tokenizer = tokenizer_from_json(self.tokenizer)
        documents = self._documents(tokenizer, worker)
        pending: list[Document] = []
        while True:
            block = [self._row(documents, pending) for _ in range(self.rows)]
            yield tuple(torch.from_numpy(np.stack(part)) for part in zip(*block, strict=True))

    def _documents(self, tokenizer: Tokenizer, worker: int) -> Iterator[Document]:
        rng = random.Random(f"{self.seed}/{worker}/long")
        stream = conversations(self.seed, worker)
        tokens = long_tokens = 1
        while True:
            if long_tokens < self.long_share * tokens:
                target = int(np.exp(rng.uniform(np.log(120), np.log(self.length - 200))))
                document = encode(sample("lookup", rng, length=target), tokenizer, LOOK_UP)
                long_tokens += len(document.ids)
            else:
                document = encode(next(stream), tokenizer)
            tokens += len(document.ids)
            if len(document.ids) <= self.length:
                yield document

    def _row(self, documents: Iterator[Document], pending: list[Document]) -> tuple[NDArray[np.generic], ...]:
        tokens = np.full(self.length, 2, np.int32)  # padding
        number = np.full(self.length, -2, np.int32)
        position = np.tile(np.arange(ALIGN, dtype=np.int32), self.length // ALIGN)
        weight = np.zeros(self.length, np.float32)
        at = count = 0
        while True:
            while len(pending) < POOL:
                pending.append(next(documents))
            fits = next(
                (n for n, document in enumerate(pending) if len(document.ids) <= self.length - at), None
            )
            if fits is None:
                return tokens, number, position, weight
            document = pending.pop(fits)
            size = len(document.ids)
            end = at + -(-size // ALIGN) * ALIGN
            tokens[at : at + size] = document.ids
            weight[at : at + size] = document.weights
            number[at:end] = count
            position[at:end] = np.arange(end - at)
            at, count = end, count + 1


def batches(
    tokenizer: Path, length: int, tokens: int, seed: int, workers: int, long_share: float, device: str
) -> Iterator[Batch]:
    """Batches of about `tokens` tokens on the device."""
    dataset = Packed(tokenizer, length, tokens // length, seed, long_share)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=device != "cpu",
    )
    for parts in loader:
        ids, document, position, weight = (part.to(device, non_blocking=True) for part in parts)
        yield Batch(ids.long(), document.long(), position.long(), weight)
