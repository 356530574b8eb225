"""Memory of the card: address space that becomes memory page by page, and working memory that ops share.

Growing never copies and never moves: a reservation has its addresses from the beginning, and physical pages are
mapped behind them as they are needed.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Protocol, TypeVar

import torch

from penstock.backend.cuda.device import check, driver


class Pages(Protocol):
    """Where memory comes from.  Addresses and sizes that are mapped are multiples of `size`."""

    size: int

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        """Memory as a tensor, uint8 [nbytes]"""
        ...

    def wait(self) -> None:
        """Returns when nobody uses memory any more."""

    def reserve(self, nbytes: int) -> int: ...

    def map(self, address: int, nbytes: int) -> Any: ...

    def unmap(self, address: int, nbytes: int, handle: Any) -> None: ...

    def release(self, address: int, nbytes: int) -> None: ...


class _Raw:
    def __init__(self, address: int, nbytes: int):
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class DevicePages(Pages):
    """The driver's virtual memory management."""

    def __init__(self, index: int):
        cuda = driver()
        self._properties = cuda.CUmemAllocationProp()
        self._properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties.location.id = index
        self._access = cuda.CUmemAccessDesc()
        self._access.location = self._properties.location
        self._access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        flags = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.size = int(check(cuda.cuMemGetAllocationGranularity(self._properties, flags), "pages"))

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        return torch.as_tensor(_Raw(address, nbytes), device="cuda")

    def wait(self) -> None:
        torch.cuda.synchronize()

    def reserve(self, nbytes: int) -> int:
        return int(check(driver().cuMemAddressReserve(nbytes, 0, 0, 0), "reserving addresses for a session"))

    def map(self, address: int, nbytes: int) -> Any:
        cuda = driver()
        handle = check(cuda.cuMemCreate(nbytes, self._properties, 0), "memory for a session")
        try:
            check(cuda.cuMemMap(address, nbytes, 0, handle, 0), "mapping memory for a session")
            check(
                cuda.cuMemSetAccess(address, nbytes, [self._access], 1), "access to the memory of a session"
            )
        except BaseException:
            cuda.cuMemRelease(handle)
            raise
        return handle

    def unmap(self, address: int, nbytes: int, handle: Any) -> None:
        cuda = driver()
        cuda.cuMemUnmap(address, nbytes)
        cuda.cuMemRelease(handle)

    def release(self, address: int, nbytes: int) -> None:
        driver().cuMemAddressFree(address, nbytes)


class Reservation:
    """Addresses [address, address + nbytes), of which some are memory."""

    def __init__(self, pages: Pages, nbytes: int):
        self._pages = pages
        self.nbytes = -(-nbytes // pages.size) * pages.size
        self.address = pages.reserve(self.nbytes)
        self._mapped: dict[int, tuple[int, Any]] = {}  # first page → pages, handle
        self._present: set[int] = set()

    @property
    def committed(self) -> int:
        """Bytes that are memory."""
        return len(self._present) * self._pages.size

    def missing(self, start: int, end: int) -> int:
        """Bytes that `commit` would take."""
        return len(self._absent(start, end)) * self._pages.size

    def _absent(self, start: int, end: int) -> list[int]:
        if end <= start:
            return []
        size = self._pages.size
        return [page for page in range(start // size, -(-end // size)) if page not in self._present]

    def contiguous(self, start: int, end: int) -> int:
        """Bytes from `start`, a page's, on that are memory, up to `end`."""
        size = self._pages.size
        page, last = start // size, -(-end // size)
        while page < last and page in self._present:
            page += 1
        return min(page * size, end) - start

    def commit(self, start: int, end: int) -> None:
        """Bytes [start, end) of it become memory."""
        absent = self._absent(start, end)
        size = self._pages.size
        while absent:
            first = absent[0]
            count = 1
            while count < len(absent) and absent[count] == first + count:
                count += 1
            self._mapped[first] = (count, self._pages.map(self.address + first * size, count * size))
            self._present.update(absent[:count])
            absent = absent[count:]

    def uncommit(self, start: int, end: int) -> None:
        """What was committed within bytes [start, end) is addresses again.  Nothing may use it any more."""
        size = self._pages.size
        for first, (count, handle) in list(self._mapped.items()):
            if start <= first * size and (first + count) * size <= -(-end // size) * size:
                self._pages.unmap(self.address + first * size, count * size, handle)
                self._present.difference_update(range(first, first + count))
                del self._mapped[first]

    def close(self) -> None:
        """Nothing may use it any more, on the card either."""
        size = self._pages.size
        for first, (count, handle) in self._mapped.items():
            self._pages.unmap(self.address + first * size, count * size, handle)
        self._mapped.clear()
        self._present.clear()
        self._pages.release(self.address, self.nbytes)


@cache
def device_pages(index: int) -> DevicePages:
    return DevicePages(index)


T = TypeVar("T")


class Workspace:
    """Working memory of ops, by name, for `rows` rows at most.  Layers take turns with it."""

    def __init__(self, rows: int):
        self.rows = rows
        self._made: dict[tuple[Any, ...], Any] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[rows, *shape]: a name always has the same shape and type."""
        found: torch.Tensor = self.once(
            (name, shape, dtype), lambda: torch.zeros(self.rows, *shape, dtype=dtype, device="cuda")
        )
        return found

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What `make` gave when it was first asked for under this key."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    @property
    def nbytes(self) -> int:
        return sum(
            prod(made.shape) * made.element_size() for made in self._made.values() if torch.is_tensor(made)
        )
