"""The speed to expect of a model in tiers: who waits for whom in a layer, over all that routing may ask for."""

from collections.abc import Callable, Iterator
from math import comb
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.backend.device import HOST_ROWS, DeviceBackend
from penstock.bench.costs import fingerprint, kernel_costs
from penstock.engine.options import EngineOptions
from penstock.machine.measured_once import MeasuredOnce
from penstock.storage.plan import Plan
from penstock.storage.read_speed import read_speed
from penstock.storage.source import ExpertSource
from penstock.storage.tiers.division import Division, Times
from penstock.storage.tiers.pace import USUAL, Pace, Routing, noted, noted_routing, power
from penstock.storage.tiers.placement import capacity_of
from penstock.storage.tiers.plan import memory_share
from penstock.storage.usage import recall_usage
from penstock.weights.checkpoint import Checkpoint

# Until a run has measured it on this machine: of a device's bandwidth, what a token's many kernels reach; and seconds
# of a layer in which device and host only hand over to each other.
READ: Final = 0.45
TURN: Final = 70e-6
FOUND, LEARNED, UNKNOWN = "as an earlier run found", "as used so far", "as random weights choose"


class InTiers(NamedTuple):
    """device, memory: shares of a token's experts that are found there; seconds: of a token by who is busy; the
    largest binds."""

    tokens_per_second: float
    device: float
    memory: float
    seconds: dict[str, float]
    prefill_tokens_per_second: float  # of a long prompt
    basis: str = UNKNOWN  # where the shares come from
    measured: bool = False  # whether an earlier run's times were there to go by

    @property
    def binds(self) -> str:
        return max(self.seconds, key=lambda name: self.seconds[name])

    def as_dict(self) -> dict[str, Any]:
        return self._asdict() | {"binds": self.binds}


def expect_in_tiers(
    checkpoint: Checkpoint,
    plan: Plan,
    backend: DeviceBackend,
    options: EngineOptions,
    *,
    again: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> InTiers:
    """Before anything is loaded.  What is not known yet of this machine is measured."""
    assert plan.tiers is not None
    source = ExpertSource(checkpoint)
    notes = MeasuredOnce("machine", fingerprint(backend.beside), again, say)
    nbytes = source.useful_bytes[0]
    disk = 0.0
    if not plan.tiers.whole:
        disk = nbytes / read_speed(source, backend.beside, notes).bytes_per_second
    before = None if again else noted(plan, backend.description)
    if before is not None:
        pace, times = before
        times = times._replace(disk=disk)
    else:
        speeds, layer = backend.speeds(), kernel_costs(checkpoint, backend.beside, notes).layers[-1]
        times = Times(nbytes / speeds.from_host, tuple(layer.routed.at(rows) for rows in HOST_ROWS), disk)
        pace = usual_pace(plan, speeds.memory)
    routing, basis = expect_routing(checkpoint, plan, options.learn == "on")
    found = expect_with(checkpoint, plan, times, pace, routing, options.exact)
    return found._replace(basis=basis, measured=before is not None)


def usual_pace(plan: Plan, bandwidth: float) -> Pace:
    """Of a device whose memory gives so many bytes per second, before anybody has measured it."""
    return Pace(sum(plan.read_by_token.values()) / bandwidth / READ, TURN)


def expect_routing(checkpoint: Checkpoint, plan: Plan, learned: bool) -> tuple[Routing, str]:
    """And what it is based on.  learned: whether the use of experts that was learned counts, if there is any"""
    model, config = checkpoint.fingerprint(), checkpoint.config
    before = noted_routing(model)
    if before is not None:
        return before, FOUND
    usage = recall_usage(model, config.layer_count, config.experts) if learned else None
    if usage is None or not usage.tells:
        return USUAL, UNKNOWN
    uses, share = np.sort(usage.answer_weights().ravel())[::-1], device_share(checkpoint, plan)
    most = uses[: int(share * uses.size)].sum() / uses.sum()
    return USUAL._replace(device=power(share, float(most))), LEARNED


def device_share(checkpoint: Checkpoint, plan: Plan) -> float:
    """Of all experts, those that the device has."""
    assert plan.tiers is not None
    kinds = plan.tiers.kinds
    experts = sum(checkpoint.config.experts * len(kind.blocks) for kind in kinds)
    return min(1.0, sum(capacity_of(kind.slots) for kind in kinds) / experts)


def expect_with(
    checkpoint: Checkpoint,
    plan: Plan,
    times: Times,
    pace: Pace,
    routing: Routing = USUAL,
    exact: bool = False,
) -> InTiers:
    """times: of an expert"""
    tiers, config = plan.tiers, checkpoint.config
    assert tiers is not None
    share = device_share(checkpoint, plan)
    held, in_memory = share**routing.device, memory_share(plan, share)
    guessed = (1 - held) * routing.guessed if tiers.whole else 0.0
    device, memory = held + guessed, in_memory**routing.memory  # memory: of the others
    division, layers = Division(times, exact), config.layer_count
    coming = layers * config.experts_used * guessed * times.link
    seconds = {"the card": pace.device, "the link": coming, "the processors": 0.0, "the disk": 0.0}
    waiting = 0.0
    for chance, missing in _chances(config.experts_used, 1 - device):
        for part, on_disk in _chances(missing, 1 - memory):
            own = division.host_share(missing, on_disk)
            each = layers * chance * part
            waiting += each * division.ends(missing, on_disk, 1.0, own)
            seconds["the link"] += each * (missing - own) * times.link
            seconds["the processors"] += each * own * times.host[0]
            seconds["the disk"] += each * on_disk * times.disk
    passing = (1 - _staying(plan) / plan.experts_total) * max(times.link, (1 - in_memory) * times.disk)
    return InTiers(
        1 / (pace.device + max(0.0, waiting + layers * pace.turn)),
        device,
        (1 - device) * memory,
        seconds,
        plan.chunk / max(layers * config.experts * passing, 1e-9),
    )


def _staying(plan: Plan) -> int:
    """Bytes of experts that need not pass in a long step."""
    assert plan.tiers is not None
    return sum(max(0, kind.long_slots - kind.passing) * kind.slot_bytes for kind in plan.tiers.kinds)


def _chances(count: int, chance: float) -> Iterator[tuple[float, int]]:
    """How likely it is that so many of `count` are of a kind that each is with this chance."""
    for number in range(count + 1):
        found = comb(count, number) * chance**number * (1 - chance) ** (count - number)
        if found > 0:
            yield found, number
