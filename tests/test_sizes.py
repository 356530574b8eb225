"""Amounts of memory as a person writes them."""

import pytest

from penstock.errors import OptionError
from penstock.sizes import parse_size, write_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("8g", 8 << 30),
        ("8GB", 8 * 10**9),
        ("512MiB", 512 << 20),
        ("512 MiB", 512 << 20),
        ("64k", 64 << 10),
        ("64KB", 64_000),
        ("2TiB", 2 << 40),
        ("1.5GiB", 3 << 29),
        ("0.1KB", 100),
        ("12345", 12345),
        (" 12345B ", 12345),
    ],
)
def test_amounts(text: str, expected: int) -> None:
    assert parse_size(text, "--memory") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "0",
        "0GiB",
        "0.1B",
        "-1G",
        "1e9",
        "8GiBs",
        "8 G B",
        "8G8",
        "1,000",
        "1.",
        ".5G",
        "nan",
        "٨G",
        "10%",
    ],
)
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(OptionError, match=r"--memory is .*expected an amount such as 8GiB"):
        parse_size(text, "--memory")


def test_more_than_any_machine_has() -> None:
    for text in ("9" * 40, "999999999999999TiB"):
        with pytest.raises(OptionError):
            parse_size(text, "--memory")


@pytest.mark.parametrize(
    ("nbytes", "written"),
    [(64 << 20, "64MiB"), (16 << 30, "16GiB"), (1536, "1536"), (1 << 40, "1TiB"), (7, "7")],
)
def test_an_amount_is_written_as_it_is_read(nbytes: int, written: str) -> None:
    assert write_size(nbytes) == written
    assert parse_size(written, "--size") == nbytes
