"""Mutations that find mistakes in binary parsers: borders of integer types, moved bytes, lost tails."""

import random
import struct

BORDERS = [0, 1, 2, 7, 8, 31, 32, 127, 128, 255, 256, 32767, 65535, 65536]
BORDERS += [(1 << n) + d for n in (20, 31, 32, 40, 48, 62, 63) for d in (-1, 0, 1)] + [(1 << 64) - 1]
FLOATS = [0.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan")]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four random changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not changed:
            return bytes(changed)
        at = rng.randrange(len(changed))
        kind = rng.randrange(9)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.randrange(256)
        elif kind in (2, 3, 4):
            width, code = rng.choice(((4, "<I"), (8, "<Q"), (8, "<Q")))
            value = rng.choice(BORDERS) & ((1 << 8 * width) - 1)
            changed[at : at + width] = struct.pack(code, value)
        elif kind == 5:
            changed[at : at + 4] = struct.pack("<f", rng.choice(FLOATS))
        elif kind == 6:
            del changed[at : at + rng.choice((1, 4, 8, 64))]
        elif kind == 7:
            source = rng.randrange(len(changed))
            changed[at:at] = changed[source : source + rng.choice((1, 4, 8, 64))]
        else:
            del changed[at:]
    return bytes(changed)
