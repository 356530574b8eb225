"""What is said while one waits."""

from penstock.hub.progress import DownloadProgress


def test_rate_and_time_left_are_those_of_what_came() -> None:
    shown = DownloadProgress("m.gguf", total=10_000_000_000, done=1_000_000_000)
    shown.found(3_000_000_000)  # by an earlier attempt
    shown.advance(1_000_000_000)
    assert shown.line(seconds=100) == "penstock: m.gguf: 5.0 GB of 10.0 GB (50%), 10.0 MB/s, 0:08:20 left"


def test_nothing_has_come_yet() -> None:
    assert DownloadProgress("m", total=0, done=0).line(1.0) == "penstock: m: 0.0 MB of 0.0 MB (0%), 0.0 MB/s"
