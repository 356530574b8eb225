"""What crosses between the card and the host in the middle of a layer, as typed calls of kernels/tiers.cu.

The card writes a layer's rows and the experts that they chose to memory of the host's; the host answers with the
places of the experts that the card is to compute, and with the sum of those that it has computed itself.
"""

import ctypes
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.cuda.inputs import FLOATS, INT, VOID, Image, address, input_bytes
from penstock.backend.cuda.launch import module
from penstock.backend.cuda.routing import Router, RoutingArgument
from penstock.backend.cuda.slots import LANES
from penstock.native.library import native

PATIENCE: Final = 400  # microseconds that the host watches for the card, before it looks only now and then
GLANCE: Final = 50_000  # microseconds after which it asks whether the card is well
GIVEN_UP: Final = 0xFFFFFFFF  # an answer to every turn: there will be none


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
        ("words", _Words), ("arrived", VOID), ("from_places", VOID), ("from", VOID), ("places", VOID), ("to", VOID),
        ("experts", INT), ("width", INT),
    )  # fmt: skip


class Waits(NamedTuple):
    """Seconds of the card in a turn."""

    host: float  # for the host's answer
    link: float  # then, for experts on their way


class Exchange:
    """Memory of a step with so many rows; layers take turns with it.

    A turn is a number that both sides count: the card writes it behind what it sends, the host behind its answer, for
    which a kernel waits.
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
            "answered": torch.zeros(1 + LANES, dtype=torch.int32).pin_memory(),
            "times": torch.zeros(2, 4, dtype=torch.int64).pin_memory(),
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

    def wait(self) -> None:
        """Until the card has sent the next turn."""
        self._turn = (self._turn + 1) % GIVEN_UP
        while not self._wait(self._sent_at, self._turn, PATIENCE, GLANCE):
            torch.cuda.current_stream().query()  # raises what went wrong

    def waits(self) -> Waits:
        """Of the turn before the latest one that was waited for."""
        _, begin, answered, arrived = self._times[(self._turn - 1) % 2].tolist()
        return Waits(max(0, answered - begin) * 1e-9, max(0, arrived - answered) * 1e-9)

    def answer(self, places: NDArray[np.int32], computed: bool, arrivals: Sequence[int]) -> None:
        """What the card goes on with.  computed: whether there is a sum; arrivals: what has to have come by each
        lane"""
        self.host_places[:] = places
        if not computed:
            self.host_sum.fill(0.0)
        self._answered[1:] = arrivals
        self._answered[0] = self._turn  # last: the card watches it

    def give_up(self) -> None:
        """There is no answer to this turn, nor to those that have been launched behind it."""
        self._answered[0] = GIVEN_UP
        torch.cuda.current_stream().synchronize()
        self._turn = int(self._sent[0])
        self._answered[0] = self._turn

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
    """Waits for the host's answer and for experts on their way; then there are places, and the host's sum.

    arrived: on the card, what has come by each lane
    """

    def __init__(self, exchange: Exchange, arrived: torch.Tensor):
        self._argument = _Receive(
            exchange.words, address(arrived), exchange.address_of("places"), exchange.address_of("sum"),
            address(exchange.places), address(exchange.sum), exchange.experts, exchange.hidden,
        )  # fmt: skip
        self._keep, self._rows = (exchange, arrived), exchange.rows
        self._kernel = module("tiers.cu").kernel("receive_rows")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(1 + self._rows, 256, (self._argument,), overlap)
