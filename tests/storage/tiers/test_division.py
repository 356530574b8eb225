"""Who computes what, by measured times alone."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.tiers.division import Division, Times

seconds = st.floats(1e-6, 1e-2)


def times(link: float, host: float, disk: float = 0.0) -> Times:
    return Times(link, (host, 4 * host, 16 * host), disk)


def test_alike_speeds_share_alike() -> None:
    division = Division(times(1e-3, 1e-3))
    assert [division.host_share(missing, 0) for missing in range(7)] == [0, 0, 1, 1, 2, 2, 3]


def test_a_slow_link_leaves_more_to_the_host() -> None:
    shares = [Division(times(link, 1e-4)).host_share(6, 0) for link in (1e-6, 1e-4, 3e-4, 1e-2)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 6


def test_many_rows_leave_more_to_the_device() -> None:
    """The link carries an expert once, however many rows need it."""
    division = Division(times(1e-4, 1e-4))
    shares = [division.host_share(12, 0, rows) for rows in (1, 2, 4, 16)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_what_is_read_last_goes_where_it_is_computed_sooner() -> None:
    """Behind a slow disk neither waits for the other, so only the last one counts."""
    assert Division(times(2e-4, 1e-4, disk=1e-2)).host_share(3, 3) >= 1
    assert Division(times(1e-4, 2e-4, disk=1e-2)).host_share(3, 3) == 0


@given(seconds, seconds, st.integers(0, 12), st.integers(0, 12))
def test_exact_leaves_nothing_to_the_host(link: float, host: float, missing: int, on_disk: int) -> None:
    assert Division(times(link, host, 1e-3), exact=True).host_share(missing, min(missing, on_disk)) == 0


@given(seconds, seconds, seconds, st.integers(1, 12))
def test_no_other_share_ends_sooner(link: float, host: float, call: float, missing: int) -> None:
    def ends(count: int) -> float:
        return max((missing - count) * link, call + count * host if count else 0.0)

    division = Division(times(link, host)._replace(call=call))
    found = ends(division.host_share(missing, 0))
    assert all(found <= ends(count) * (1 + 1e-9) for count in range(missing + 1))


def test_what_is_learned_replaces_what_was_guessed() -> None:
    division = Division(times(1.0, 1e-6))
    assert division.host_share(4, 0) == 4
    division.learn(times(1e-6, 1.0))
    assert division.host_share(4, 0) == 0
