"""Amounts of memory and of disk as a person writes them."""

import re
from decimal import Decimal

from penstock.errors import OptionError

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1 << 10 * _power, f"{_letter}ib": 1 << 10 * _power, f"{_letter}b": 10 ** (3 * _power)}

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]{0,3})")
_MOST = 1 << 60


def parse_size(text: str, flag: str) -> int:
    """Bytes.  Raises OptionError, naming `flag`, for anything that is not a positive amount.

    >>> parse_size("8GiB", "--memory"), parse_size("8G", "--memory"), parse_size("8GB", "--memory")
    (8589934592, 8589934592, 8000000000)
    """
    match = _SIZE.fullmatch(text.strip().lower())
    unit = _UNITS.get(match[2]) if match else None
    if match and unit:
        nbytes = int(Decimal(match[1]) * unit)
        if 0 < nbytes <= _MOST:
            return nbytes
    raise OptionError(f"{flag} is {text!r}, expected an amount such as 8GiB, 512MiB or 8GB")


def write_size(nbytes: int) -> str:
    """The shortest exact way to write an amount.

    >>> write_size(64 << 20), write_size(16 << 30), write_size(1000)
    ('64MiB', '16GiB', '1000')
    """
    for power in (4, 3, 2, 1):
        if nbytes and nbytes % (1 << 10 * power) == 0:
            return f"{nbytes >> 10 * power}{'KMGT'[power - 1]}iB"
    return str(nbytes)


def disk_size(nbytes: int) -> str:
    """As disks and downloads are measured: in powers of ten.

    >>> disk_size(86_720_111_488), disk_size(15_961_216)
    ('86.7 GB', '16.0 MB')
    """
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def size(nbytes: float) -> str:
    """For people, who do not want all digits.

    >>> size(1536)
    '1.50 KiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def write_amount(nbytes: int) -> str:
    """About so much, for a person.

    >>> write_amount(3 << 29), write_amount(5 << 20)
    ('1.50 GiB', '5 MiB')
    """
    return f"{nbytes / (1 << 30):.2f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.0f} MiB"


def speed(per_second: float) -> str:
    """For people: as many digits as an expectation is good for.

    >>> speed(1234.5), speed(56.7), speed(0.4321)
    ('1,230', '57', '0.43')
    """
    if per_second >= 1000:
        return f"{round(per_second, -1):,.0f}"
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.2g}"
