"""Two network namespaces of this machine as two hosts, with a link between them that is as slow as wanted.

Bandwidth is the kernel's (`tc`, a token bucket).  Latency is a process that holds packets back: not every kernel has
netem, and this needs only TUN devices.  Packets are large, so that few of them have to be handled.
"""

import fcntl
import os
import queue
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

TUNSETIFF: Final = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU: Final = 65_000
HOSTS: Final = ("10.77.0.1", "10.77.0.2")


class Shaped(NamedTuple):
    """gigabits per second, and milliseconds one way"""

    gigabits: float
    milliseconds: float

    @property
    def name(self) -> str:
        return f"{self.gigabits:g} Gb/s, {self.milliseconds:g} ms"


def why_not() -> str | None:
    """Why there can be no such hosts here."""
    if os.geteuid() != 0:
        return "network namespaces are root's"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "iproute2 is missing (ip, tc)"
    return None if os.path.exists("/dev/net/tun") else "/dev/net/tun is missing"


@contextmanager
def two_hosts(link: Shaped) -> Iterator[tuple[list[str], list[str]]]:
    """How commands begin that are to run on the first host, and on the second."""
    names = [f"penstock-{os.getpid()}-{side}" for side in "ab"]
    devices: list[int] = []
    try:
        for name, host in zip(names, HOSTS, strict=True):
            _run("ip", "netns", "add", name)
            devices.append(_tun(device := f"ps{os.getpid() % 100_000}{name[-1]}"))
            _run("ip", "link", "set", device, "netns", name)
            within = ("ip", "-n", name)
            _run(*within, "addr", "add", f"{host}/24", "dev", device)
            _run(*within, "link", "set", device, "mtu", str(MTU), "up")
            _run(*within, "link", "set", "lo", "up")
            rate = f"{link.gigabits * 1000:.0f}mbit"
            bucket = ("tbf", "rate", rate, "burst", str(4 * MTU), "limit", str(64 << 20))
            _run("tc", "-n", name, "qdisc", "add", "dev", device, "root", *bucket)
        first, second = devices
        for source, target in ((first, second), (second, first)):
            _Wire(source, target, link.milliseconds / 1e3)
        yield ["ip", "netns", "exec", names[0]], ["ip", "netns", "exec", names[1]]
    finally:
        for each in devices:
            os.close(each)
        for name in names:
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", name)


class _Wire:
    """One direction: a packet is there a moment after it was sent.  Ends with the devices."""

    def __init__(self, source: int, target: int, delay: float):
        self._source, self._target, self._delay = source, target, delay
        self._flying: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        for each in (self._take, self._give):
            threading.Thread(target=each, daemon=True).start()

    def _take(self) -> None:
        with suppress(OSError):
            while packet := os.read(self._source, MTU + 64):
                self._flying.put((time.perf_counter() + self._delay, packet))

    def _give(self) -> None:
        while True:
            due, packet = self._flying.get()
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            with suppress(OSError):  # the other side is down for a moment, or for good
                os.write(self._target, packet)


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
