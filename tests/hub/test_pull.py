"""Downloading: whole, interrupted, damaged, refused."""

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir, try_to_load_from_cache

from penstock.errors import HubError
from penstock.hub import cache, pull, service
from penstock.hub.find import find_cached
from penstock.hub.pull import Wanted, look_up
from penstock.hub.reference import parse_reference
from tests.hub.server import Hub, Repo, digest

DATA = random.Random(0).randbytes(1_000_000)
REPO = "some/model-gguf"
FILE = "model-Q4_K_M.gguf"


@pytest.fixture(autouse=True)
def served(hub: Hub) -> Hub:
    hub.repos[REPO] = Repo({FILE: DATA, "README.md": b"# A model"})
    return hub


def wanted(name: str = REPO) -> Wanted:
    return look_up(parse_reference(name))


def partial(places: Path) -> Path:
    return places / "models--some--model-gguf" / "blobs" / f"{digest(DATA)}.incomplete"


# ── whole ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_arrives_in_many_parts_and_each_byte_once(served: Hub, places: Path) -> None:
    path = pull.pull(wanted())
    assert path.read_bytes() == DATA
    assert path.is_relative_to(places)
    ranges = sorted((asked.first, asked.end) for asked in served.fetched())
    assert len(ranges) == 16
    assert [first for first, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == len(DATA)


def test_the_cache_is_that_of_huggingface_hub(places: Path) -> None:
    path = pull.pull(wanted())
    assert try_to_load_from_cache(REPO, FILE, cache_dir=places) == str(path)
    assert hf_hub_download(REPO, FILE, cache_dir=places, local_files_only=True) == str(path)
    found = scan_cache_dir(places)
    assert not found.warnings
    assert [(repo.repo_id, repo.size_on_disk) for repo in found.repos] == [(REPO, len(DATA))]


def test_what_huggingface_hub_has_downloaded_is_used(served: Hub, places: Path) -> None:
    path = hf_hub_download(REPO, FILE, cache_dir=places, endpoint=served.url)
    served.log.clear()
    assert find_cached(parse_reference(f"{REPO}:Q4_K_M")) == Path(path)
    assert pull.pull(wanted()) == Path(path)
    assert not served.fetched()


@pytest.mark.parametrize(
    "environment",
    [
        {"HF_HUB_CACHE": "/a/cache"},
        {"HUGGINGFACE_HUB_CACHE": "/an/old/one"},
        {"HF_HOME": "~/elsewhere"},
        {"XDG_CACHE_HOME": "/x"},
        {"HF_HOME": "", "XDG_CACHE_HOME": ""},
    ],
)
def test_the_cache_is_where_huggingface_hub_looks(environment: dict[str, str]) -> None:
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
    program = (
        "from huggingface_hub.constants import HF_HUB_CACHE; from penstock.hub.cache import cache_folder;"
        "print(HF_HUB_CACHE, cache_folder())"
    )
    clean = {key: value for key, value in os.environ.items() if key not in names}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, **{key: value for key, value in environment.items() if value}},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs, ours = done.stdout.split()
    assert ours == theirs


def test_a_token_goes_to_the_hub_and_nowhere_else(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    served.repos[REPO].gated = True
    pull.pull(wanted())
    assert {asked.token for asked in served.log if asked.server == "hub"} == {"Bearer hf_secret"}
    assert {asked.token for asked in served.fetched()} == {None}


# ── interrupted ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reach", [0, 1, 300_000, 999_999])
def test_what_came_before_an_interruption_is_not_fetched_again(served: Hub, places: Path, reach: int) -> None:
    served.faults.bytes_left = reach
    with pytest.raises(HubError, match=r"connections failed.*the same command goes on"):
        pull.pull(wanted())
    here = partial(places).stat().st_size
    assert here <= reach
    assert partial(places).read_bytes() == DATA[:here]
    assert find_cached(parse_reference(REPO)) is None
    for thread in threading.enumerate():
        if thread.name == "download":
            thread.join(30)
    served.faults.bytes_left = None
    served.log.clear()
    assert pull.pull(wanted()).read_bytes() == DATA
    assert sum(asked.end - asked.first for asked in served.fetched()) == len(DATA) - here
    assert not partial(places).exists()


def test_connections_that_break_are_made_again(served: Hub) -> None:
    served.faults.statuses = [503, 500, 429, 502]
    assert pull.pull(wanted()).read_bytes() == DATA


def test_an_address_that_expires_is_asked_for_again(served: Hub) -> None:
    served.faults.addresses_last = 3
    assert pull.pull(wanted()).read_bytes() == DATA


def test_ctrl_c_keeps_what_has_come(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Iterator[bytes]:
        yield DATA[:12345]
        raise KeyboardInterrupt

    monkeypatch.setattr(pull, "read_in_order", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pull.pull(wanted())
    assert partial(places).read_bytes() == DATA[:12345]


def test_two_processes_do_not_write_the_same_file() -> None:
    found = wanted()
    with (
        found.repository.lock(found.model.files[0]),
        pytest.raises(HubError, match=r"another process is downloading model-Q4_K_M\.gguf"),
    ):
        pull.pull(found)


# ── damaged ───────────────────────────────────────────────────────────────────────────────────────────────


def test_wrong_bytes_are_deleted(served: Hub, places: Path) -> None:
    served.faults.corrupt = True
    with pytest.raises(
        HubError, match=rf"has the checksum [0-9a-f]{{16}}…, the hub says {digest(DATA)[:16]}…; it was"
    ):
        pull.pull(wanted())
    assert not list(places.rglob("*.incomplete"))
    assert find_cached(parse_reference(REPO)) is None


def test_a_wrong_beginning_is_found_out(places: Path) -> None:
    partial(places).parent.mkdir(parents=True)
    partial(places).write_bytes(b"something else")
    with pytest.raises(HubError, match="checksum"):
        pull.pull(wanted())
    assert pull.pull(wanted()).read_bytes() == DATA


def test_a_beginning_that_is_too_long_is_cut(served: Hub, places: Path) -> None:
    partial(places).parent.mkdir(parents=True)
    partial(places).write_bytes(DATA + b"more")
    assert pull.pull(wanted()).read_bytes() == DATA
    assert not served.fetched()


def test_small_files_have_checksums_too(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served.repos["a/b"] = Repo({"config.json": b"{}", "model.safetensors": DATA})
    assert (pull.pull(wanted("a/b")) / "config.json").read_bytes() == b"{}"
    listing = service.list_files("a/b")
    lying = listing._replace(
        files=tuple(f._replace(digest="0" * 40) if f.size == 2 else f for f in listing.files)
    )
    monkeypatch.setattr(pull, "list_files", lambda _: lying)
    with pytest.raises(HubError, match="checksum"):
        pull.pull(wanted("a/b"))


def test_a_server_without_ranges_is_told_apart(served: Hub) -> None:
    served.faults.no_ranges = True
    with pytest.raises(HubError, match=r"the server sends no parts of files \(status 200\)"):
        pull.pull(wanted())


# ── no room ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    served: Hub, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "free_bytes", lambda _: 900_000)
    with pytest.raises(HubError, match=rf"^{places}.*: 1\.0 MB are needed, 0\.9 MB are free; HF_HOME"):
        pull.pull(wanted())
    assert not served.fetched()
    monkeypatch.setattr(pull, "SPARE", 0)
    partial(places).parent.mkdir(parents=True)
    partial(places).write_bytes(DATA[:100_000])  # what is here needs no more room
    pull.pull(wanted())


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Half a megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    monkeypatch.setenv("HF_HUB_CACHE", str(place))
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_fills_up(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match="are needed"):
        pull.pull(wanted())
    monkeypatch.setattr(pull, "check_room", lambda *_: None)
    with pytest.raises(HubError, match="the disk is full; with more room the same command goes on"):
        pull.pull(wanted())
    (kept,) = small_disk.rglob("*.incomplete")
    assert kept.read_bytes() == DATA[: kept.stat().st_size]


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    with pytest.raises(HubError, match=r"file.*cannot be written"):
        pull.pull(wanted())


# ── refused ───────────────────────────────────────────────────────────────────────────────────────────────


def test_refusals_say_what_to_do(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served.repos["a/gated"] = Repo({FILE: DATA}, gated=True)
    served.repos["a/hidden"] = Repo({FILE: DATA}, hidden=True)
    with pytest.raises(
        HubError, match=r"a/gated: access has to be asked for at http.*/a/gated; then HF_TOKEN"
    ):
        pull.pull(wanted("a/gated"))
    for name in ("a/hidden", "no/such"):
        with pytest.raises(HubError, match=rf"{name}: no such public repository.*HF_TOKEN"):
            wanted(name)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert pull.pull(wanted("a/gated")).read_bytes() == pull.pull(wanted("a/hidden")).read_bytes() == DATA
    with pytest.raises(HubError, match="no/such: no such public repository"):
        wanted("no/such")


def test_a_file_that_is_gone(served: Hub) -> None:
    found = wanted()
    served.repos[REPO].files = {"other.gguf": DATA}
    with pytest.raises(HubError, match=rf"there is no file '{FILE}' in it"):
        pull.pull(found)


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"some/model-gguf: no answer from http://127\.0\.0\.1:9: "):
        wanted()


def test_offline_nobody_is_asked_and_what_is_here_is_found(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pull.pull(wanted())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    served.log.clear()
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        wanted()
    assert find_cached(parse_reference(REPO)) == path
    assert not served.log


def test_what_is_no_hub(served: Hub) -> None:
    served.listing = b"<html>"
    with pytest.raises(HubError, match="is HF_ENDPOINT a hub"):
        wanted()


def test_a_path_cannot_leave_the_cache(served: Hub) -> None:
    for path in ("../../x.gguf", "/etc/x.gguf", "a//b.gguf", "a/./b.gguf", "a\\b.gguf", "a\nb.gguf"):
        served.repos["a/b"] = Repo({path: DATA})
        with pytest.raises(HubError, match="no path inside a repository"):
            wanted("a/b")


def test_the_repository_of_a_reference(places: Path) -> None:
    assert cache.Repository.of("a/b").folder == places / "models--a--b"
