"""What crosses between the card and the host in the middle of a layer, as typed calls of kernels/tiers.cu.

The card writes a layer's rows and the experts that they chose to memory of the host's.  The host answers with the
places of the experts that the card is to compute, which brings those that it lacks by itself; then with the sum of
those that the host has computed.
"""

import ctypes
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.cuda.inputs import FLOATS, INT, VOID, Image, address, input_bytes
from penstock.backend.cuda.launch import module
from penstock.backend.cuda.routing import Router, RoutingArgument
from penstock.backend.cuda.slots import COMINGS, LANES, PULLERS, CudaExpertSlots, Pull, PullArgument
from penstock.backend.device import GLANCE, Meeting
from penstock.native.library import native

PATIENCE: Final = 400  # microseconds that the host watches for the card, before it looks only now and then
GIVEN_UP: Final = 0xFFFFFFFF  # an answer to every turn: there will be none


def check() -> None:
    """Raises what went wrong on the card."""
    torch.cuda.current_stream().query()


class _Words(ctypes.Structure):
    _fields_ = (("turn", VOID), ("blocks", VOID), ("sent", VOID), ("answered", VOID), ("times", VOID))


class _Send(ctypes.Structure):
    _fields_ = (
        ("routing", RoutingArgument), ("next", RoutingArgument), ("words", _Words), ("x", VOID), ("ids", VOID),
        ("weights", VOID), ("likely", VOID), ("to", VOID),
        ("x_stride", INT), ("width", INT), ("rows", INT), ("last", INT),
    )  # fmt: skip


class _Receive(ctypes.Structure):
    _fields_ = (
        ("words", _Words), ("pull", PullArgument), ("arrived", VOID), ("from_places", VOID), ("from", VOID),
        ("places", VOID), ("to", VOID), ("experts", INT), ("width", INT), ("rows", INT),
    )  # fmt: skip


class Waits(NamedTuple):
    """Seconds of the card in a turn."""

    host: float  # for the host's answers, while nothing else was on its way
    link: float  # for experts on their way


class Exchange:
    """Memory of a step with so many rows; layers take turns with it.

    A turn is a number that both sides count: the card writes it behind what it sends, the host behind its answers,
    for which a kernel waits.
    """

    def __init__(self, rows: int, count: int, experts: int, hidden: int):
        self.rows, self.count, self.experts, self.hidden = rows, count, experts, hidden
        self._pinned = {
            "ids": torch.zeros(rows, count, dtype=torch.int64).pin_memory(),
            "weights": torch.zeros(rows, count).pin_memory(),
            "x": torch.zeros(rows, hidden).pin_memory(),
            "places": torch.zeros(experts, dtype=torch.int32).pin_memory(),
            "sum": torch.zeros(rows, hidden).pin_memory(),
            "likely": torch.zeros(count, dtype=torch.int64).pin_memory(),
            "sent": torch.zeros(1, dtype=torch.int32).pin_memory(),
            "answered": torch.zeros(2 + LANES, dtype=torch.int32).pin_memory(),
            "times": torch.zeros(2, 5, dtype=torch.int64).pin_memory(),
        }
        host = {name: each.numpy() for name, each in self._pinned.items()}
        self.ids, self.weights, self.x = host["ids"], host["weights"], host["x"]
        self.host_places, self.host_sum, self.likely = host["places"], host["sum"], host["likely"]
        self._sent, self._answered = host["sent"].view(np.uint32), host["answered"].view(np.uint32)
        self._times = host["times"]
        self.places = torch.zeros(experts, dtype=torch.int32, device="cuda")
        self.sum = torch.zeros(rows, hidden, device="cuda")
        self._counts = torch.zeros(2, dtype=torch.int32, device="cuda")  # turns, blocks
        self._turn, self._wait = 0, native().ps_wait_for
        self._sent_at = self.address_of("sent")
        self.words = _Words(
            address(self._counts), address(self._counts) + 4, self._sent_at, self.address_of("answered"),
            self.address_of("times"),
        )  # fmt: skip

    def meeting(self, slots: CudaExpertSlots) -> Meeting:
        return Meeting(self._sent, self._answered, slots.arrivals, self.host_places, self.likely)

    def next(self) -> int:
        """The card's next turn."""
        self._turn = (self._turn + 1) % GIVEN_UP
        return self._turn

    def wait(self) -> None:
        """Until the card has sent it."""
        while not self._wait(self._sent_at, self._turn, PATIENCE, GLANCE):
            check()

    def waits(self) -> Waits:
        """Of the turn before the latest one."""
        _, begin, answered, there, summed = self._times[(self._turn - 1) % 2].tolist()
        there = max(there, answered)
        return Waits(
            max(0, answered - begin + max(0, summed - there)) * 1e-9, max(0, there - answered) * 1e-9
        )

    def answer(self, slots: CudaExpertSlots, places: NDArray[np.int32], computed: bool) -> None:
        """What the card goes on with, all at once.  computed: whether there is a sum"""
        self.host_places[:] = places
        if not computed:
            self.host_sum.fill(0.0)
        self._answered[2:] = slots.arrivals
        self._answered[1] = self._turn
        self._answered[0] = self._turn  # last: the card watches it

    def give_up(self) -> None:
        """There is no answer to this turn, nor to those that have been launched behind it."""
        self._answered[:2] = GIVEN_UP
        torch.cuda.current_stream().synchronize()
        self._turn = int(self._sent[0])
        self._answered[:2] = self._turn

    def address_of(self, name: str, row: int = 0) -> int:
        tensor = self._pinned[name]
        return tensor.data_ptr() + row * tensor.stride(0) * tensor.element_size()


class Send:
    """Rows [first, …) of a step: their inputs, and the experts that they choose.

    last    no others follow in a turn
    likely  what the first row would choose in the next layer
    """

    def __init__(
        self,
        exchange: Exchange,
        router: Router,
        image: Image,
        first: int,
        last: bool,
        likely: Router | None = None,
    ):
        # The floats are the last of an image's forms.
        before = input_bytes(image.columns, image.rows, image.forms) - input_bytes(
            image.columns, image.rows, FLOATS
        )
        self._argument = _Send(
            router.argument(), RoutingArgument() if likely is None else likely.argument(), exchange.words,
            address(image.data) + before, exchange.address_of("ids", first), exchange.address_of("weights", first),
            exchange.address_of("likely"), exchange.address_of("x", first), 4 * image.columns + 32, exchange.hidden,
            image.rows, last,
        )  # fmt: skip
        self._keep, self._blocks = (exchange, router, image, likely), 1 + image.rows + (likely is not None)
        self._kernel = module("tiers.cu").kernel("send_rows")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._blocks, 512, (self._argument,), overlap)


class Receive:
    """Waits for the host's answers and for experts on their way; then there are places, and the host's sum.

    pull: what brings experts that the card is to bring by itself
    """

    def __init__(self, exchange: Exchange, slots: CudaExpertSlots, pull: Pull | None):
        self._argument = _Receive(
            exchange.words, PullArgument() if pull is None else pull.argument, address(slots.arrived),
            exchange.address_of("places"), exchange.address_of("sum"), address(exchange.places),
            address(exchange.sum), exchange.experts, exchange.hidden, exchange.rows,
        )  # fmt: skip
        self._keep, self._blocks = (exchange, slots, pull), 1 + exchange.rows + (PULLERS if pull else 0)
        self._kernel = slots.module.kernel("receive_rows", pull.shared if pull else COMINGS)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._blocks, 256, (self._argument,), overlap)
