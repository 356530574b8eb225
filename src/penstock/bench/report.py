"""What a benchmark found: the middle of the repetitions, and how far it is from what memory allows."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.backend.device import KernelTime
from penstock.backend.state import DTYPES
from penstock.bench.sweep import Timing, Trial
from penstock.bench.traffic import Part, state_bytes, weight_bytes
from penstock.engine.engine import Engine


@dataclass(frozen=True)
class Point:
    """One frontier.  Each timing is that of the middle repetition, so its parts still add up."""

    context: int
    prefill: Timing
    decode: Timing
    prefill_range: tuple[float, float]  # tokens per second, slowest and fastest repetition
    decode_range: tuple[float, float]
    bytes_per_token: int  # weights and attention state that a decoded token reads
    bandwidth: float
    kernels: tuple[KernelTime, ...] = ()  # of a decoded token on a device

    @property
    def floor_s(self) -> float:
        """Seconds that reading alone would take."""
        return self.bytes_per_token / self.bandwidth

    @property
    def of_floor(self) -> float:
        """1 when decoding is as fast as memory can be read."""
        return self.floor_s * self.decode.per_second


@dataclass(frozen=True)
class Report:
    model: str
    threads: int
    kv_dtype: str
    repeat: int
    bandwidth: float  # bytes per second, measured with as many threads
    weight_bytes: dict[Part, int]  # read per decoded token
    points: tuple[Point, ...]
    notes: tuple[str, ...]

    @cached_property
    def kernels(self) -> list[str]:
        """Those of a device that were seen, most time first."""
        seconds: dict[str, float] = {}
        for point in self.points:
            for kernel in point.kernels:
                seconds[kernel.name] = seconds.get(kernel.name, 0.0) + kernel.seconds
        return sorted(seconds, key=lambda name: -seconds[name])

    @cached_property
    def parts(self) -> list[Part]:
        """Those that were seen."""
        seen = {part for point in self.points for part in (*point.prefill.parts, *point.decode.parts)}
        return [part for part in Part if part in seen]

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "threads": self.threads,
            "kv_dtype": self.kv_dtype,
            "repeat": self.repeat,
            "bandwidth_bytes_per_s": round(self.bandwidth),
            "weight_bytes_per_token": {part.value: count for part, count in self.weight_bytes.items()},
            "points": [_point(point) for point in self.points],
            "notes": list(self.notes),
        }

    def as_csv(self) -> str:
        """One line per frontier; times in milliseconds per token."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        parts = [(phase, part) for phase in ("prefill", "decode") for part in self.parts]
        writer.writerow(
            ["context", "prefill_tokens", "prefill_per_s", "decode_tokens", "decode_per_s"]
            + ["bytes_per_token", "floor_ms", "of_floor"]
            + [f"{phase}_{part.value.replace(' ', '_')}_ms" for phase, part in parts]
        )
        for point in self.points:
            row: list[object] = [point.context, point.prefill.tokens, f"{point.prefill.per_second:.4g}"]
            row += [point.decode.tokens, f"{point.decode.per_second:.4g}", point.bytes_per_token]
            row += [f"{1e3 * point.floor_s:.4g}", f"{point.of_floor:.4g}"]
            for phase, part in parts:
                timing: Timing = getattr(point, phase)
                row.append(f"{1e3 * timing.parts.get(part, 0.0) / timing.tokens:.4g}")
            writer.writerow(row)
        return buffer.getvalue()


def summarise(engine: Engine, trials: Sequence[Trial], bandwidth: float, notes: Sequence[str]) -> Report:
    weights = weight_bytes(engine.checkpoint)
    value_bytes = DTYPES[engine.options.kv_dtype].itemsize
    points = []
    for context in dict.fromkeys(trial.context for trial in trials):
        own = [trial for trial in trials if trial.context == context]
        prefill, prefill_range = _middle(own, lambda trial: trial.prefill)
        decode, decode_range = _middle(own, lambda trial: trial.decode)
        read = sum(weights.values()) + state_bytes(engine.config, context + decode.tokens // 2, value_bytes)
        kernels = own[-1].kernels
        points.append(Point(context, prefill, decode, prefill_range, decode_range, read, bandwidth, kernels))
    return Report(
        model=str(engine.checkpoint.path),
        threads=engine.options.thread_count,
        kv_dtype=engine.options.kv_dtype,
        repeat=max((sum(trial.context == point.context for trial in trials) for point in points), default=0),
        bandwidth=bandwidth,
        weight_bytes=dict(weights),
        points=tuple(points),
        notes=tuple(notes),
    )


def _middle(trials: Sequence[Trial], phase: Callable[[Trial], Timing]) -> tuple[Timing, tuple[float, float]]:
    ordered = sorted((phase(trial) for trial in trials), key=lambda timing: timing.seconds)
    return ordered[len(ordered) // 2], (ordered[-1].per_second, ordered[0].per_second)


def _point(point: Point) -> dict[str, Any]:
    return {
        "context": point.context,
        "prefill": _timing(point.prefill, point.prefill_range),
        "decode": _timing(point.decode, point.decode_range),
        "bytes_per_token": point.bytes_per_token,
        "floor_s": point.floor_s,
        "of_floor": point.of_floor,
        "kernels_s": {kernel.name: kernel.seconds for kernel in point.kernels},
    }


def _timing(timing: Timing, between: tuple[float, float]) -> dict[str, Any]:
    return {
        "tokens": timing.tokens,
        "seconds": timing.seconds,
        "per_second": timing.per_second,
        "slowest_per_second": between[0],
        "fastest_per_second": between[1],
        "parts_s": {part.value: seconds for part, seconds in timing.parts.items()},
    }
