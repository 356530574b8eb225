"""The speed to expect here and now: what is known of this machine, its disk and the model's use, put together.

For a model that is not here, `imagine` its checkpoint and give the speed of the disk that it would lie on:

    checkpoint = imagine(WIDTHS["flash"].whole(), lambda plan: stored_type(plan, "q2"))
    plan, context = make_engine_plan(checkpoint, EngineOptions(memory=16 << 30), backend, None)
    expect_here(checkpoint, plan, backend, disk=ReadSpeed(3e9, 1e-4)).steady.per_second
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.backend.base import Backend
from penstock.bench.bandwidth import read_bandwidth
from penstock.bench.costs import Costs, fingerprint, kernel_costs
from penstock.bench.expectation import Expectation, expect
from penstock.bench.expected_run import Phase
from penstock.bench.missing_weights import Handling, handling
from penstock.bench.new_memory import Filling, NewMemory, new_memory
from penstock.machine.cpu import read_cpu
from penstock.machine.measured_once import MeasuredOnce
from penstock.machine.memory import read_memory
from penstock.storage.page_cache import Absent, Gaps, find_gaps
from penstock.storage.plan import Plan
from penstock.storage.policy_choice import DEFAULT, choose_policy
from penstock.storage.read_speed import ReadSpeed, read_speed
from penstock.storage.source import ExpertSource
from penstock.storage.trace import Trace
from penstock.storage.usage import recall_usage
from penstock.weights.checkpoint import Checkpoint

MEMORY: Final = 1 << 29  # bytes that the speed of memory is measured with
UNIFORM, LEARNED, TRACED = "if all are equally likely", "as used so far", "by the trace"


@dataclass(frozen=True)
class Expected(Expectation):
    """And what it follows from."""

    costs: Costs
    disk: ReadSpeed
    memory_bandwidth: float  # bytes per second
    basis: str  # where the hit rate comes from
    absent: Absent  # of a mapped file
    handling: Handling
    filling: Filling
    young: float  # seconds longer that a byte takes to be read for the second time to memory that was new
    prefill_between: tuple[float, float]  # tokens per second, as new memory is slow or quick

    @property
    def token_seconds(self) -> dict[str, float]:
        """Where the time of a token goes, once the cache is full."""
        layers = self.costs.layers
        dense = sum(layer.rest.at(1) for layer in layers) + self.costs.step.at(1)
        logits, waiting = self.costs.head + self.costs.token, self.steady.waiting / self.steady.tokens
        whole = self.steady.seconds / self.steady.tokens
        return {
            "dense": dense,
            "experts": max(0.0, whole - dense - logits - waiting),
            "logits": logits,
            "disk": waiting,
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens_per_second": self.first.per_second,
            "steady_tokens_per_second": self.steady.per_second,
            "prefill_tokens_per_second": self.prefill.per_second,
            "prefill_tokens_per_second_between": self.prefill_between,
            "tokens_per_second_by_prompt": {
                str(n): phase.per_second for n, phase in sorted(self.answers.items())
            },
            "prefill_by_prompt": {str(n): phase.per_second for n, phase in sorted(self.prompts.items())},
            "token_seconds": self.token_seconds,
            "hit_rate": self.steady.hit_rate,
            "hit_rate_basis": self.basis,
            "disk_bytes_per_token": self.steady.disk_bytes / self.steady.tokens,
            "disk_bandwidth": self.disk.bytes_per_second,
            "disk_latency": self.disk.latency,
            "memory_bandwidth": self.memory_bandwidth,
            "cold_bytes": self.absent.nbytes,
        }


def expect_here(
    checkpoint: Checkpoint,
    plan: Plan,
    backend: Backend,
    *,
    disk: ReadSpeed | None = None,
    misses: Handling | None = None,
    learned: bool = True,
    trace: Trace | None = None,
    policy: str = DEFAULT,
    again: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Expected:
    """What is not known yet is measured, once, which takes some seconds: `say` is told before.

    disk     the speed of the disk, for a model that is not on any; else that of its own
    misses   what missing experts cost, for such a model
    learned  whether the use of experts that was learned counts, if there is any
    policy   the one to expect with a trace; else the engine's own choice
    """
    threads = getattr(backend, "threads", 1)
    notes = MeasuredOnce("machine", fingerprint(backend), again, say)
    seconds_per_byte = notes.numbers("memory", 1, lambda: [1 / read_bandwidth(threads, MEMORY)])[0]
    costs = kernel_costs(checkpoint, backend, notes)
    if plan.mode != "direct":  # only who takes no time drafts where experts come from a disk
        costs = costs._replace(token=costs.token + costs.drafts)
    on_disk, usage, misses = disk is None, None, misses or Handling()
    if disk is None:
        if plan.mode == "direct":
            misses = handling(checkpoint, backend, notes)
        disk = read_speed(ExpertSource(checkpoint), backend, notes)  # last, because it changes most
        if trace is None and plan.mode == "direct":
            config, model = checkpoint.config, checkpoint.fingerprint()
            known = recall_usage(model, config.layer_count, config.experts) if learned else None
            usage = known if known is not None and known.tells else None
            policy = choose_policy(model, plan.experts_held)
    new = NewMemory()
    if on_disk:
        gaps = find_gaps(checkpoint.files) if plan.mode == "mmap" else Gaps()
        new = new_memory(plan, ExpertSource(checkpoint), gaps)
    found = expect(
        checkpoint,
        plan,
        costs,
        disk,
        usage=usage,
        trace=trace,
        policy=policy,
        handling=misses,
        fresh=new.filling.usual,
        young=new.young,
        remembered=read_memory().total,  # of its host's memory nobody knows: taken to be as large
    )
    basis = TRACED if trace is not None else UNIFORM if usage is None else LEARNED
    with_the_file = {
        "prefill": _with_the_file(found.prefill, new.absent),
        "prompts": {tokens: _with_the_file(each, new.absent) for tokens, each in found.prompts.items()},
    }
    return Expected(
        **vars(found) | with_the_file,
        costs=costs,
        disk=disk,
        memory_bandwidth=1 / seconds_per_byte,
        basis=basis,
        absent=new.absent,
        handling=misses,
        filling=new.filling,
        young=new.young,
        prefill_between=_between(found.prefill, plan, new),
    )


def _with_the_file(prefill: Phase, absent: Absent) -> Phase:
    """A file comes while the prompt is read, which goes on with what is there; it takes the processors' time too."""
    seconds = max(absent.seconds, prefill.seconds + absent.working)
    return replace(prefill, seconds=seconds, waiting=prefill.waiting + seconds - prefill.seconds)


def _between(prefill: Phase, plan: Plan, new: NewMemory) -> tuple[float, float]:
    """Tokens per second of a prompt, the fewest and the most, if all new memory is as slow or as quick as can be."""
    filling = new.filling
    cached = min(plan.experts_held, prefill.disk_bytes) / read_cpu().usable if plan.mode == "direct" else 0.0
    by_byte = plan.work + cached  # seconds of the prompt, for a second of a byte
    slow, quick = (
        _with_the_file(
            replace(prefill, seconds=prefill.seconds + (seconds - filling.usual) * by_byte), absent
        ).per_second
        for seconds, absent in ((filling.slowest, new.latest), (filling.quickest, new.soonest))
    )
    return min(slow, quick), max(slow, quick)
