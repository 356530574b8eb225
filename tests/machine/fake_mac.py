"""A Mac that answers on any system."""

import struct
from collections.abc import Mapping
from pathlib import Path

from penstock.machine import macos

GIB = 1 << 30


class FakeMac(macos.Kernel):
    """An M3 Max.  Answers are laid out as in the headers of macOS."""

    names: Mapping[str, bytes] = {
        "machdep.cpu.brand_string": b"Apple M3 Max\0",
        "hw.perflevel0.logicalcpu": struct.pack("=I", 12),
        "hw.perflevel0.l2cachesize": struct.pack("=Q", 16 << 20),
        "hw.l2cachesize": struct.pack("=Q", 4 << 20),
        "hw.optional.AdvSIMD": struct.pack("=I", 1),
        "hw.optional.arm.FEAT_DotProd": struct.pack("=I", 1),
        "hw.optional.arm.FEAT_BF16": struct.pack("=I", 0),
        "vm.swapusage": struct.pack("=3QI?3x", 2 * GIB, GIB, GIB, 16384, True),
    }

    def sysctl(self, name: str) -> bytes | None:
        return self.names.get(name)

    def pages(self) -> bytes | None:
        free, page_ins, purgeable, read_ahead, swap_ins, files = 1000, 5, 20, 100, 3, 400
        first, since = (free, 30, 70, 50), (0, 0, page_ins, 0, 0, 0, 0, 0, 0)
        then = (purgeable, read_ahead, 0, 0, swap_ins, 0, 1, 2, files, 600, 9)
        return struct.pack("=4I9Q2I4Q4IQ", *first, *since, *then)

    def task(self) -> bytes | None:
        return struct.pack("=3Q6i", 400 * GIB, 3 * GIB, 4 * GIB, *([0] * 6))

    def statfs(self, path: Path) -> bytes | None:
        assert path.exists()
        words = (b"apfs", b"/", b"/dev/disk3s5")
        return struct.pack("=Ii5Q2i4I16s1024s1024s8I", *([7] * 13), *words, *([0] * 8))
