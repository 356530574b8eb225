"""Trains the pocket model: trunk, indexer and draft block, in four phases.

    python -m pocket.train --tokenizer build/pocket/tokenizer --out build/pocket [--resume] [--minutes 9]

1. `short`   dense attention over all compressed rows; the indexer learns alongside, from that attention
2. `long`    the same on rows of 8,192 tokens, for look-ups over long distances
3. `sparse`  the indexer's choice is switched on; experts are rounded as the file will hold them
4. `draft`   the trunk is frozen, and the draft block learns to predict what it will say

The run can be cut anywhere and resumed.  `log.jsonl` keeps losses, speeds and expert loads.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pocket.batches import LOOK_UP, batches
from pocket.config import Batch, PocketConfig
from pocket.experts import Gate, MoE
from pocket.export import save
from pocket.fused import FUSED
from pocket.model import Pocket
from pocket.muon import Muon

STEP_TOKENS = 65536
PEAK_MATRICES, PEAK_OTHERS, LAST_RATE, WARM_UP = 4e-3, 2e-3, 0.03, 200
INDEX_SHARE = 0.1  # weight of the indexer's loss; its inputs are detached, so only its own pace depends on it
TEACH_EVERY = 5  # steps of the dense phases from one lesson for the indexer to the next
BIAS_SPEED = 1e-3  # how fast selection biases follow the load


@dataclass(frozen=True)
class Phase:
    name: str
    steps: int
    length: int
    long_share: float
    sparse: bool = False
    draft: bool = False  # trains the draft block, and only that


STEPS = (4500, 700, 700, 500)


def phases(steps: Sequence[int]) -> list[Phase]:
    short, long, sparse, draft = steps
    return [
        Phase("short", short, 2048, 0.35),
        Phase("long", long, 8192, 0.5),
        Phase("sparse", sparse, 8192, 0.4, sparse=True),
        Phase("draft", draft, 2048, 0.15, sparse=True, draft=True),
    ]


def rate(step: int, total: int) -> float:
    """Learning rate as a share of the peak: warm up, then down along a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    progress = min(1.0, (step - WARM_UP) / max(1, total - WARM_UP))
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def token_losses(head: Tensor, hidden: Tensor, batch: Batch, ahead: int) -> dict[str, Tensor]:
    """Mean loss of predicting `ahead` places on: over what counts, what assistants say, and what they look up."""
    targets, weights = batch.tokens[:, ahead:], batch.weight[:, ahead:]
    same = batch.document[:, ahead:] == batch.document[:, :-ahead]
    weights = weights * same
    losses = FUSED.head_losses(head, hidden[:, :-ahead].flatten(0, 1), targets.flatten()).view_as(weights)

    def mean(share: Tensor) -> Tensor:
        return (losses * share).sum() / share.sum().clamp(min=1)

    said, looked_up = (weights >= 1).float(), (weights == LOOK_UP).float()
    return {"loss": mean(weights), "assistant": mean(said).detach(), "lookup": mean(looked_up).detach()}


def optimizers(model: Pocket) -> list[torch.optim.Optimizer]:
    """Muon for the matrices; AdamW for embedding, head, routers, mixing of streams, norms."""
    apart = ("embed", "head.", "hc_", "gate.weight", "ape")
    matrices = [
        p for n, p in model.named_parameters() if p.dim() >= 2 and not any(part in n for part in apart)
    ]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    fused = torch.cuda.is_available()
    return [
        Muon(matrices, lr=PEAK_MATRICES, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(others, lr=PEAK_OTHERS, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=fused),
    ]


def steer(model: Pocket, loads: Tensor, draft: bool) -> None:
    """Moves selection biases against the load: overused experts become harder to choose."""
    parts = [model.draft] if draft else list(model.layers)
    gates = [gate for part in parts for gate in part.modules() if isinstance(gate, Gate)]
    for gate, load in zip(gates, loads[-len(gates) :], strict=True):
        if not gate.hashed:
            gate.bias += BIAS_SPEED * torch.sign(load.mean() - load)


class Run:
    """A training run that can be cut and continued."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(options.seed)
        torch.set_float32_matmul_precision("high")
        self.model = Pocket(PocketConfig()).to(self.device)
        self.optimizers = optimizers(self.model)
        self.phases = phases(options.steps)
        self.step = 0
        self.state = options.out / "state.pt"
        if options.resume and self.state.exists():
            saved = torch.load(self.state, map_location=self.device, weights_only=True)
            self.model.load_state_dict(saved["model"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.step = saved["step"]
        if self.device == "cuda":
            FUSED.compile()
        self.log: Path = options.out / "log.jsonl"
        if not options.resume:
            self.log.unlink(missing_ok=True)

    @property
    def total(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def rate(self, phase: Phase) -> float:
        """The trunk's phases share one curve; the draft block has its own."""
        trunk = self.total - self.phases[-1].steps
        return rate(self.step - trunk, phase.steps) if phase.draft else rate(self.step, trunk)

    def run(self) -> bool:
        """Trains until the end or until time is up; says whether the end was reached."""
        deadline = time.time() + 60 * self.options.minutes
        begin = 0
        for phase in self.phases:
            end = begin + phase.steps
            if self.step < end:
                self._enter(phase)
                stream = batches(
                    self.options.tokenizer / "tokenizer.json",
                    phase.length,
                    STEP_TOKENS,
                    seed=self.options.seed * 1000 + self.step,
                    workers=self.options.workers,
                    long_share=phase.long_share,
                    device=self.device,
                )
                self._phase(phase, end, stream, deadline)
                if self.step < end:
                    break
            begin = end
        self._save()
        return self.step >= self.total

    def _enter(self, phase: Phase) -> None:
        for module in self.model.modules():
            if isinstance(module, MoE):
                module.quantise = phase.sparse
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(not phase.draft or name.startswith("draft."))
        print(f"phase {phase.name} from step {self.step}", flush=True)

    def _phase(self, phase: Phase, end: int, stream: Iterator[Batch], deadline: float) -> None:
        begin, since = time.time(), self.step
        for batch in stream:
            report = self._train(phase, batch)
            self.step += 1
            if self.step % 25 == 0 or self.step == end:
                speed = (self.step - since) * STEP_TOKENS / (time.time() - begin)
                entry = {"step": self.step, "phase": phase.name, "tokens_per_s": round(speed)}
                entry |= {name: round(float(value), 4) for name, value in report.items() if value.dim() == 0}
                entry["loads"] = [[round(v, 4) for v in row] for row in report["loads"].tolist()]
                with open(self.log, "a") as log:
                    log.write(json.dumps(entry) + "\n")
                del entry["loads"]
                print(entry, flush=True)
                begin, since = time.time(), self.step
            if self.step >= end or time.time() > deadline:
                return

    def _train(self, phase: Phase, batch: Batch) -> dict[str, Tensor]:
        model = self.model
        for optimizer, peak in zip(self.optimizers, (PEAK_MATRICES, PEAK_OTHERS), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * self.rate(phase)
            optimizer.zero_grad(set_to_none=True)
        teach = not phase.draft and (phase.sparse or (self.step + 1) % TEACH_EVERY == 0)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device == "cuda"):
            output = model(batch, sparse=phase.sparse, teach=teach, draft=phase.draft)
            if output.draft is not None:
                report = token_losses(model.head.weight, output.draft, batch, ahead=2)
            else:
                report = token_losses(model.head.weight, output.hidden, batch, ahead=1)
            loss = report["loss"] + INDEX_SHARE * output.index_loss
        loss.backward()
        report["index"], report["loss"] = output.index_loss.detach(), report["loss"].detach()
        report["norm"] = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            steer(model, output.loads, phase.draft)
        report["loads"] = output.loads / output.loads.sum(-1, keepdim=True)
        return report

    def _save(self) -> None:
        state: dict[str, Any] = {"model": self.model.state_dict(), "step": self.step}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save(state, self.state)
        save(self.model, self.options.out / "model.pt")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pocket.train")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this long, to be resumed")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int, nargs=4, default=STEPS, help="steps of the four phases")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    done = Run(options).run()
    print("done" if done else "time is up; run again with --resume", flush=True)


if __name__ == "__main__":
    main()
