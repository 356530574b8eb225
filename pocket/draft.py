"""Teaches a finished model's draft block to go on from its own guesses.  The trunk stays as it is, to the byte.

    python -m pocket.draft OUT.gguf [--model pocket.gguf] [--minutes 25]

The block is trained to guess one token; from the second guess on it is given its own streams in place of the trunk's.
So here it makes its guesses in a row, as the engine lets it: guess k of token i stands at position i + k - 1 and sees
the true rows up to i and those of the guesses before it.  Each is compared with what the trunk itself expects there,
on texts of the generator and on the trunk's own answers.  The engine says what the trunk does, so what is learned
fits the file; all of it runs on a processor, and `--minutes` are its time.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.backend.state import Step
from penstock.chat.driver import ChatDriver
from penstock.chat.messages import Conversation, Role
from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from penstock.weights.checkpoint import Checkpoint
from pocket.attention import Attention
from pocket.batches import Document, encode
from pocket.config import PocketConfig
from pocket.data import conversations
from pocket.draft_file import decoded, read_block, write_block
from pocket.experts import MoE
from pocket.fused import FUSED
from pocket.model import Draft, Head
from pocket.muon import Muon

PLACES: Final = 4  # guesses in a row
TOKENS: Final = 3072  # of a batch
LONGEST: Final = 1024  # tokens of a document
ANSWERED: Final = 16  # conversations that the trunk answers together
PEAK_MATRICES, PEAK_OTHERS, LAST_RATE, WARM_UP = 2e-3, 1e-3, 0.02, 0.04


class Lesson(NamedTuple):
    """Documents one after another, with what the trunk makes of them."""

    tokens: Tensor  # [tokens]
    document: Tensor  # [tokens]
    position: Tensor  # [tokens], within the document
    said: Tensor  # [tokens], whether the model would have to say it
    streams: Tensor  # [tokens, n, hidden]
    expected: Tensor  # [tokens, vocab]: logits of the token after each


# ── what is learned from ──────────────────────────────────────────────────────────────────────────────────────


class Trunk:
    """The model as the engine runs it."""

    def __init__(self, path: Path, threads: int):
        self.engine = Engine(path, draft="mtp", threads=threads, prefill_chunk=LONGEST)

    def lesson(self, documents: Sequence[Document]) -> Lesson:
        runner, streams, expected = self.engine.loader.load(), [], []
        for document in documents:
            session = self.engine.session()
            step = Step.of([(session.state.slot, 0, document.ids, len(document.ids))])
            hidden = runner.forward(step)  # type: ignore[attr-defined]
            streams.append(torch.from_numpy(hidden.array.copy()))
            expected.append(torch.from_numpy(runner.logits(hidden, step)))  # type: ignore[attr-defined]
            runner.discard(step)
        sizes = [len(document.ids) for document in documents]
        return Lesson(
            torch.tensor([token for document in documents for token in document.ids]),
            torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
            torch.cat([torch.arange(size) for size in sizes]),
            torch.tensor([weight >= 1 for document in documents for weight in document.weights]),
            torch.cat(streams),
            torch.cat(expected),
        )

    def answered(self, asked: Sequence[Conversation]) -> list[Document]:
        """The conversations with the trunk's own last words."""
        prompts = [ChatDriver(self.engine).reply(each).prompt.ids for each in asked]
        prompts = [ids for ids in prompts if len(ids) < LONGEST // 2]
        texts, ends = [list(ids) for ids in prompts], set(self.engine.config.eos_ids)
        waiting = [(self.engine.session(), text, text) for text in texts]
        while waiting:
            found = self.engine.feed([(session, ids) for session, _, ids in waiting])
            going = []
            for (session, text, _), logits in zip(waiting, found, strict=True):
                assert logits is not None
                text.append(int(np.argmax(logits)))
                if text[-1] not in ends and len(text) < LONGEST:
                    going.append((session, text, text[-1:]))
            waiting = going
        return [
            Document(text, [0.0] * len(ids) + [1.0] * (len(text) - len(ids)))
            for ids, text in zip(prompts, texts, strict=True)
        ]


def lessons(trunk: Trunk, seed: int) -> Iterator[Lesson]:
    """Texts of the generator and the trunk's answers, in turn."""
    stream, own = conversations(seed), list[Document]()
    while True:
        documents: list[Document] = []
        while sum(len(document.ids) for document in documents) < TOKENS:
            if len(documents) % 2:
                while not own:
                    own = trunk.answered([_asked(next(stream)) for _ in range(ANSWERED)])
                documents.append(own.pop())
            else:
                documents.append(encode(next(stream), trunk.engine.tokenizer))
                if len(documents[-1].ids) > LONGEST:
                    documents.pop()
        yield trunk.lesson(documents)


def _asked(conversation: Conversation) -> Conversation:
    """Up to where the assistant speaks for the last time."""
    messages = conversation.messages
    last = max(n for n, message in enumerate(messages) if message.role is Role.ASSISTANT)
    return replace(conversation, messages=messages[:last])


# ── guesses in a row ──────────────────────────────────────────────────────────────────────────────────────────


def join(draft: Draft, streams: Tensor, embedded: Tensor) -> Tensor:
    """[tokens, n, hidden] and the embedding of the tokens after → the block's input [tokens, n, hidden]"""
    following: Tensor = draft.e_proj(draft.enorm(embedded)).unsqueeze(1)
    joined: Tensor = draft.h_proj(draft.hnorm(streams)) + following
    return joined


def experts(moe: MoE, x: Tensor) -> tuple[Tensor, Tensor]:
    """As `MoE.forward`, but each expert sees only the tokens that chose it: cheaper on a processor."""
    weights, _ = moe.route(x, x.new_zeros(len(x), dtype=torch.long))
    gate_up, down, limit = moe.quantised(moe.gate_up), moe.quantised(moe.down), moe.c.swiglu_limit
    out = torch.zeros_like(x)
    for number in range(moe.c.experts):
        chosen = weights[:, number].nonzero().squeeze(-1)
        gate, up = F.linear(x[chosen], gate_up[number]).chunk(2, dim=-1)
        inner = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
        out = out.index_add(0, chosen, F.linear(inner * weights[chosen, number, None], down[number]))
    shared = moe.shared_experts
    gate, up = shared["w1"](x).clamp(max=limit), shared["w3"](x).clamp(-limit, limit)
    return out + shared["w2"](F.silu(gate) * up), (weights > 0).float().sum(0)


def keys(attn: Attention, x: Tensor, position: Tensor) -> Tensor:
    weight, eps = attn.kv_norm.weight, attn.c.rms_eps
    return FUSED.keys(attn.wkv(x), weight, position, attn.speed, eps, torch.float32)


def attend(attn: Attention, x: Tensor, position: Tensor, rows: Tensor, seen: Tensor) -> Tensor:
    """x [anchors, hidden]; rows [anchors, rows, dim] as far as `seen` [anchors, rows] → [anchors, hidden]"""
    c = attn.c
    q = attn.wq_b(attn.q_norm(attn.wq_a(x))).unflatten(-1, (c.heads, c.head_dim))
    q = FUSED.queries(q, position, attn.speed, c.rms_eps, torch.float32)  # [anchors, heads, dim]
    scores = (q @ rows.transpose(1, 2)).masked_fill(~seen.unsqueeze(1), -1e30)
    sinks = attn.attn_sink.expand(len(x), -1).unsqueeze(-1)
    weights = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
    out = FUSED.turn(weights @ rows, position, attn.speed, torch.float32, -1.0)
    groups = out.flatten(1).unflatten(-1, (c.o_groups, -1))
    w = attn.wo_a.weight.unflatten(0, (c.o_groups, c.o_rank))
    return attn.wo_b(torch.einsum("tgi,goi->tgo", groups, w).flatten(1))  # type: ignore[no-any-return]


def guesses(
    draft: Draft, embed: Tensor, lesson: Lesson, anchors: Tensor, places: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each place in a row: streams [anchors, n, hidden] from which the guess is made, and the experts' load.
    anchors: tokens that as many others follow in their document as there are places, and one"""
    layer = draft.layer
    following = F.embedding(F.pad(lesson.tokens, (0, 1))[1:], embed)
    joined = join(draft, lesson.streams, following)
    x, post, comb = layer.mix("attn", joined)
    rows = keys(layer.attn, x, lesson.position)
    joined, x, post, comb = joined[anchors], x[anchors], post[anchors], comb[anchors]
    # The window of every anchor, and behind it the rows of its guesses.
    near = anchors[:, None] + torch.arange(1 - draft.c.window, 1)
    seen = (near >= 0) & (lesson.document[near.clamp(min=0)] == lesson.document[anchors, None])
    rows = F.embedding(near.clamp(min=0), rows)  # [anchors, window, dim]
    for place in range(places):
        position = lesson.position[anchors] + place
        if place:
            joined = join(draft, joined, F.embedding(lesson.tokens[anchors + place + 1], embed))
            x, post, comb = layer.mix("attn", joined)
            rows = torch.cat((rows[:, 1:], keys(layer.attn, x, position).unsqueeze(1)), dim=1)
            seen = F.pad(seen[:, 1:], (0, 1), value=True)
        joined = FUSED.expand(attend(layer.attn, x, position, rows, seen), joined, post, comb)
        x, post, comb = layer.mix("ffn", joined)
        y, load = experts(layer.ffn, x)
        joined = FUSED.expand(y, joined, post, comb)
        yield joined, load


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────


class Teacher:
    def __init__(self, checkpoint: Checkpoint):
        self.config = PocketConfig()
        self.draft = read_block(checkpoint, self.config)
        self.embed, self.head = decoded(checkpoint, "token_embd.weight"), decoded(checkpoint, "output.weight")
        self.fold = Head(self.config).requires_grad_(False)
        self.fold.load_state_dict(
            {leaf: decoded(checkpoint, f"output_hc_{leaf}.weight") for leaf in ("fn", "base", "scale")}
        )
        apart = ("hc_", "gate.weight")
        named = list(self.draft.named_parameters())
        matrices = [p for n, p in named if p.dim() >= 2 and not any(part in n for part in apart)]
        chosen = {id(p) for p in matrices}
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=PEAK_MATRICES, momentum=0.95, weight_decay=0.0),
            torch.optim.AdamW(
                [p for _, p in named if id(p) not in chosen],
                lr=PEAK_OTHERS,
                betas=(0.9, 0.95),
                weight_decay=0.0,
            ),
        ]

    def losses(self, lesson: Lesson, places: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Of each place: how far from what the trunk expects, and how often its first choice is the trunk's."""
        ahead = places + 1
        last = torch.arange(len(lesson.tokens) - ahead)
        fits = (lesson.document[:-ahead] == lesson.document[ahead:]) & lesson.said[2 : len(last) + 2]
        anchors = last[fits]
        losses, right, loads = [], [], torch.zeros(self.config.experts)
        for place, (streams, load) in enumerate(guesses(self.draft, self.embed, lesson, anchors, places)):
            logits = F.linear(self.draft.norm(self.fold(streams)), self.head)
            expected = lesson.expected[anchors + place + 1]
            losses.append(F.cross_entropy(logits, torch.softmax(expected, dim=-1)))
            right.append((logits.argmax(-1) == expected.argmax(-1)).float().mean().detach())
            loads += load.detach()
        return losses, right, loads

    def learn(self, lesson: Lesson, rate: float) -> tuple[list[float], list[float]]:
        for optimizer, peak in zip(self.optimizers, (PEAK_MATRICES, PEAK_OTHERS), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate
            optimizer.zero_grad(set_to_none=True)
        losses, right, loads = self.losses(lesson, PLACES)
        torch.stack(losses).sum().backward()
        nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            self.draft.layer.ffn.gate.bias += 1e-3 * rate * torch.sign(loads.mean() - loads)
        return [float(loss.detach()) for loss in losses], [float(share) for share in right]


def rate(done: float) -> float:
    """Learning rate as a share of the peak: warm up, then down along a cosine."""
    if done < WARM_UP:
        return max(0.05, done / WARM_UP)
    along = min(1.0, (done - WARM_UP) / (1 - WARM_UP))
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * along))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pocket.draft")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, default=pocket_path())
    parser.add_argument("--minutes", type=float, default=25.0, help="of processor time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    trunk = Trunk(options.model, options.threads)
    teacher, seconds, saved = Teacher(trunk.engine.checkpoint), 60 * options.minutes, 0.0
    for number, lesson in enumerate(lessons(trunk, options.seed)):
        done = time.process_time() / seconds
        losses, right = teacher.learn(lesson, rate(done))
        if number % 10 == 0:
            shown = " ".join(f"{loss:.3f}" for loss in losses), " ".join(f"{share:.1%}" for share in right)
            print(f"{number:5} {done:4.0%}  loss {shown[0]}  same choice {shown[1]}", flush=True)
        if done >= 1 or done > saved + 0.2:
            saved = done
            write_block(teacher.draft, trunk.engine.checkpoint, options.out)
        if done >= 1:
            break


if __name__ == "__main__":
    main()
