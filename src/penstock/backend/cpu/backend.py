"""The CPU as a backend."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import DeviceExpert, DeviceWeight, HostExpert, Vector
from penstock.backend.cpu.host_share import CpuShare, expert_work
from penstock.backend.cpu.low_precision import round_expert
from penstock.backend.cpu.memory import Buffer
from penstock.backend.cpu.sampling import CpuSampling
from penstock.backend.cpu.states import CpuStates
from penstock.backend.cpu.weights import CpuExpert, CpuExpertTable, CpuWeight, check_decoding
from penstock.backend.device import HostBackend, Observer
from penstock.backend.state import StateLayout
from penstock.native.library import native
from penstock.weights.tensor import TensorInfo

if TYPE_CHECKING:
    from penstock.backend.cpu.deepseek_v4.ops import CpuOps

# Interpreter and libraries: 45 MiB for an engine alone (`python -m benchmarks.start`), about twice that in a server.
PROGRAM: Final = 96 << 20

# Microseconds that threads watch for the next share of a device's layers: longer than a layer takes
BESIDE: Final = 1000


class CpuBackend(HostBackend):
    """threads: the most that an op uses, the calling one included."""

    name = "cpu"

    def __init__(self, threads: int, low_precision: bool = False):
        self.threads, self.low_precision = threads, low_precision
        self.sampling = CpuSampling(threads)
        self._observer: Observer = lambda _: None

    def observe_inputs(self, observer: Observer) -> None:
        self._observer = observer

    def weight(self, info: TensorInfo) -> CpuWeight:
        return CpuWeight(info, self._observer(info))

    def expert(self, gate: DeviceWeight, up: DeviceWeight, down: DeviceWeight) -> DeviceExpert:
        assert isinstance(gate, CpuWeight)
        assert isinstance(up, CpuWeight)
        assert isinstance(down, CpuWeight)
        expert = CpuExpert(gate, up, down)
        if self.low_precision:
            round_expert(expert)
        return expert

    def expert_table(self, experts: int) -> CpuExpertTable:
        return CpuExpertTable(experts)

    def states(self, layout: StateLayout) -> CpuStates:
        return CpuStates(layout)

    def host(self, array: Buffer) -> NDArray[Any]:
        return array.array

    def device(self, array: NDArray[Any]) -> Buffer:
        return Buffer(np.ascontiguousarray(array))

    def check(self) -> None:
        check_decoding()

    # ── beside a device ───────────────────────────────────────────────────────────────────────────────────

    @property
    def _beside(self) -> int:
        """Threads that compute, while one more keeps books and asks the device for copies."""
        return self.threads if self.threads < 4 else self.threads - 1

    def share(
        self, x: Vector, ids: NDArray[np.int64], weights: Vector, out: Vector, limit: float
    ) -> CpuShare:
        native().ps_threads_patience(BESIDE)
        return CpuShare(x, ids, weights, out, limit, self._beside)

    def expert_work(
        self, experts: Sequence[HostExpert], rows: int, together: int
    ) -> list[Callable[[], None]]:
        own = [each for each in experts if isinstance(each, CpuExpert)]
        return expert_work(own, rows, together, self._beside)

    @property
    def program_bytes(self) -> int:
        return PROGRAM

    def deepseek_v4(self) -> "type[CpuOps]":
        from penstock.backend.cpu.deepseek_v4.ops import CpuOps

        return CpuOps
