"""The speed to expect of a model in tiers: who waits for whom in a layer, over all that routing may ask for."""

from collections.abc import Callable, Iterator
from math import comb
from typing import Any, Final, NamedTuple

from penstock.backend.device import HOST_ROWS, DeviceBackend
from penstock.bench.costs import fingerprint, kernel_costs
from penstock.machine.measured_once import MeasuredOnce
from penstock.storage.plan import Plan
from penstock.storage.read_speed import read_speed
from penstock.storage.source import ExpertSource
from penstock.storage.tiers.division import Division, Times
from penstock.storage.tiers.pace import Pace, noted
from penstock.storage.tiers.placement import capacity_of
from penstock.weights.checkpoint import Checkpoint

# Until a run has measured it on this machine: of a device's bandwidth, what a token's many kernels reach; and seconds
# of a layer in which device and host only hand over to each other.
READ: Final = 0.45
TURN: Final = 70e-6


class InTiers(NamedTuple):
    """device, memory: shares of a token's experts that are found there, if all are equally likely; seconds: of a
    token by who is busy; the largest binds."""

    tokens_per_second: float
    device: float
    memory: float
    seconds: dict[str, float]
    prefill_tokens_per_second: float  # of a long prompt

    @property
    def binds(self) -> str:
        return max(self.seconds, key=lambda name: self.seconds[name])

    def as_dict(self) -> dict[str, Any]:
        return self._asdict() | {"binds": self.binds}


def expect_in_tiers(
    checkpoint: Checkpoint,
    plan: Plan,
    backend: DeviceBackend,
    *,
    exact: bool = False,
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
        return expect_with(checkpoint, plan, times._replace(disk=disk), pace, exact)
    speeds, layer = backend.speeds(), kernel_costs(checkpoint, backend.beside, notes).layers[-1]
    times = Times(nbytes / speeds.from_host, tuple(layer.routed.at(rows) for rows in HOST_ROWS), disk)
    return expect_with(checkpoint, plan, times, usual_pace(plan, speeds.memory), exact)


def usual_pace(plan: Plan, bandwidth: float) -> Pace:
    """Of a device whose memory gives so many bytes per second, before anybody has measured it."""
    return Pace(sum(plan.read_by_token.values()) / bandwidth / READ, TURN)


def expect_with(checkpoint: Checkpoint, plan: Plan, times: Times, pace: Pace, exact: bool = False) -> InTiers:
    """times: of an expert"""
    tiers, config = plan.tiers, checkpoint.config
    assert tiers is not None
    experts = sum(config.experts * len(kind.blocks) for kind in tiers.kinds)
    device = min(1.0, sum(capacity_of(kind.slots) for kind in tiers.kinds) / experts)
    elsewhere = plan.experts_total * (1 - device)
    memory = 1.0 if tiers.whole or not elsewhere else min(1.0, tiers.held / elsewhere)
    division, layers = Division(times, exact), config.layer_count
    seconds = {"the card": pace.device, "the link": 0.0, "the processors": 0.0, "the disk": 0.0}
    waiting = 0.0
    for chance, missing in _chances(config.experts_used, 1 - device):
        for part, on_disk in _chances(missing, 1 - memory):
            share = division.host_share(missing, on_disk)
            each = layers * chance * part
            waiting += each * division.ends(missing, on_disk, 1.0, share)
            seconds["the link"] += each * (missing - share) * times.link
            seconds["the processors"] += each * share * times.host[0]
            seconds["the disk"] += each * on_disk * times.disk
    slowest = max(times.link, times.disk * (1 - memory))
    passing = layers * config.experts * (1 - device) * slowest
    return InTiers(
        1 / (waiting + pace.device + layers * pace.turn),
        device,
        (1 - device) * memory,
        seconds,
        plan.chunk / max(passing, 1e-9),
    )


def _chances(count: int, chance: float) -> Iterator[tuple[float, int]]:
    """How likely it is that so many of `count` are of a kind that each is with this chance."""
    for number in range(count + 1):
        found = comb(count, number) * chance**number * (1 - chance) ** (count - number)
        if found > 0:
            yield found, number
