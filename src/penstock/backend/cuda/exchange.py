"""What crosses between the card and the host in the middle of a layer, as typed calls of kernels/tiers.cu.

The card writes a layer's rows and the experts that they chose to memory of the host's; the host answers with the
places of the experts that the card is to compute, and with the sum of those that it has computed itself.
"""

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.cuda.driver_calls import driver_calls
from penstock.backend.cuda.inputs import FLOATS, INT, VOID, Image, address, input_bytes
from penstock.backend.cuda.launch import module
from penstock.backend.cuda.routing import Router, RoutingArgument


class _Send(ctypes.Structure):
    _fields_ = (
        ("routing", RoutingArgument), ("x", VOID), ("ids", VOID), ("weights", VOID), ("to", VOID),
        ("x_stride", INT), ("width", INT), ("rows", INT),
    )  # fmt: skip


class _Receive(ctypes.Structure):
    _fields_ = (
        ("from_places", VOID), ("from", VOID), ("places", VOID), ("to", VOID), ("experts", INT), ("width", INT),
    )  # fmt: skip


class Exchange:
    """Memory of a step with so many rows; layers take turns with it."""

    def __init__(self, rows: int, count: int, experts: int, hidden: int):
        self.rows, self.count, self.experts, self.hidden = rows, count, experts, hidden
        self._pinned = {
            "ids": torch.zeros(rows, count, dtype=torch.int64).pin_memory(),
            "weights": torch.zeros(rows, count).pin_memory(),
            "x": torch.zeros(rows, hidden).pin_memory(),
            "places": torch.zeros(experts, dtype=torch.int32).pin_memory(),
            "sum": torch.zeros(rows, hidden).pin_memory(),
        }
        self.ids, self.weights, self.x, self.host_places, self.host_sum = (
            each.numpy() for each in self._pinned.values()
        )
        self.places = torch.zeros(experts, dtype=torch.int32, device="cuda")
        self.sum = torch.zeros(rows, hidden, device="cuda")
        self._event = torch.cuda.Event()
        self._event.record()  # makes it
        self._calls = driver_calls()

    def sent(self) -> None:
        """All that the host is to know has been asked for."""
        self._calls.record(self._event.cuda_event, torch.cuda.current_stream().cuda_stream)

    def wait(self) -> None:
        """Until it is there."""
        self._calls.synchronize(self._event.cuda_event)

    def answer(self, places: NDArray[np.int32], computed: bool) -> None:
        """What the next `Receive` will find.  computed: whether there is a sum."""
        self.host_places[:] = places
        if not computed:
            self.host_sum.fill(0.0)

    def address_of(self, name: str, row: int = 0) -> int:
        tensor = self._pinned[name]
        return tensor.data_ptr() + row * tensor.stride(0) * tensor.element_size()


class Send:
    """Rows [first, …) of a step: their inputs, and the experts that they choose."""

    def __init__(self, exchange: Exchange, router: Router, image: Image, first: int):
        # The floats are the last of an image's forms.
        before = input_bytes(image.columns, image.rows, image.forms) - input_bytes(
            image.columns, image.rows, FLOATS
        )
        self._argument = _Send(
            router.argument(), address(image.data) + before, exchange.address_of("ids", first),
            exchange.address_of("weights", first), exchange.address_of("x", first), 4 * image.columns + 32,
            exchange.hidden, image.rows,
        )  # fmt: skip
        self._keep, self._rows = (exchange, router, image), image.rows
        self._kernel = module("tiers.cu").kernel("send_rows")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(1 + self._rows, 512, (self._argument,), overlap)


class Receive:
    """Places, and the host's sum."""

    def __init__(self, exchange: Exchange):
        self._argument = _Receive(
            exchange.address_of("places"), exchange.address_of("sum"), address(exchange.places),
            address(exchange.sum), exchange.experts, exchange.hidden,
        )  # fmt: skip
        self._keep, self._rows = exchange, exchange.rows
        self._kernel = module("tiers.cu").kernel("receive_rows")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(1 + self._rows, 256, (self._argument,), overlap)
