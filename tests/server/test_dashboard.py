"""The numbers that the page shows."""

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from penstock.server.http.settings import Settings
from penstock.server.observe import dashboard
from penstock.server.observe.state_series import Totals
from penstock.server.service import Service
from penstock.storage.heat import ExpertMap
from tests.server.serving import serving, small_engine

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 20}


def snapshots(service: Service, count: int, totals: Totals | None = None) -> list[Any]:
    """The first events of a stream."""

    async def take() -> list[str]:
        stream = dashboard._snapshots(service, totals)
        found = [await anext(stream) for _ in range(count)]
        await stream.aclose()
        return found

    return [json.loads(line.removeprefix("data: ")) for line in asyncio.run(take())]


def test_the_stream_tells_what_the_server_does() -> None:
    service = Service(small_engine(), Settings(api_keys=("secret",)))
    key = {"Authorization": "Bearer secret"}
    with serving(service) as url, httpx.Client(base_url=url, headers=key, timeout=120) as client:
        assert httpx.get(f"{url}/dashboard/events").status_code == 401
        with client.stream("GET", "/dashboard/events") as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            lines = (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: "))
            before = next(lines)
            assert client.post("/v1/chat/completions", json=HELLO).status_code == 200
            after = next(each for each in lines if each["tokens"]["generated"])
    assert before["state"] == after["state"] == "ready"
    assert before["about"]["mode"] == "direct"
    assert (before["about"]["device"], before["gpu"]) == ("CPU", None)
    assert after["tokens"]["read"] == 5
    for name in ("hits", "misses", "disk_bytes"):
        assert after["storage"][name] > before["storage"][name], name
    assert after["queue"]["steps"] > before["queue"]["steps"]
    assert after["queue"]["engine_seconds"] > 0
    assert after["time"] > before["time"]
    assert after["memory"]["experts"]["used"] > before["memory"]["experts"]["used"]
    assert after["memory"]["experts"]["used"] <= after["memory"]["experts"]["limit"]
    assert before["map"]["blocks"] == after["map"]["blocks"]
    assert before["map"]["cells"] != after["map"]["cells"]


def test_the_map_is_sent_only_if_it_has_changed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Service(service.engine, Settings())
    heat = np.zeros((2, 3), np.float32)
    maps = iter([heat, heat.copy(), heat + 1, None, None, heat])

    def found() -> ExpertMap | None:
        heat = next(maps)
        return None if heat is None else ExpertMap(["blk.0", "blk.1"], heat > 0, heat)

    monkeypatch.setattr(dashboard, "EVERY", 0.0)
    monkeypatch.setattr(service.engine, "expert_map", found)
    assert [each.get("map", "same") is not None for each in snapshots(own, 6)] == [
        True,
        True,
        True,
        False,
        True,
        True,
    ]
    maps = iter([heat, heat.copy(), heat + 1])
    assert ["map" in each for each in snapshots(own, 3)] == [True, False, True]


def test_a_byte_of_the_map_says_where_an_expert_is_and_how_hot() -> None:
    present = np.array([[True, False, True, False]])
    for hottest, shown in ((20.0, 20.0), (2.0, dashboard.WARM)):  # what is lukewarm does not look hot
        heat = np.array([[0, 0, hottest, hottest / 2]], np.float32)
        found = dashboard.expert_map(ExpertMap(["blk.0"], present, heat))
        assert found is not None
        cells = np.frombuffer(base64.b64decode(found["cells"]), np.uint8)
        assert (cells >> 7).tolist() == [1, 0, 1, 0]
        told = np.expm1((cells & 127) / 127 * np.log1p(found["hottest"]))
        assert told == pytest.approx(heat[0], rel=0.05)
        assert found["hottest"] == shown
        assert found["tiers"] is None


def test_a_map_tells_the_gpu_from_memory_and_disk() -> None:
    tiers = np.array([[0, 1, 2]], np.uint8)
    found = dashboard.expert_map(ExpertMap(["blk.0"], tiers > 0, np.zeros((1, 3), np.float32), tiers))
    assert found is not None
    assert np.frombuffer(base64.b64decode(found["tiers"]), np.uint8).tolist() == [0, 1, 2]
    cells = np.frombuffer(base64.b64decode(found["cells"]), np.uint8)
    assert (cells >> 7).tolist() == [0, 1, 1]


def test_without_metrics_tokens_are_not_known(service: Service) -> None:
    own = Service(service.engine, Settings(metrics=False))
    (found,) = snapshots(own, 1)
    assert found["tokens"] is None
    assert found["storage"] is None  # the file is mapped, and nobody counts
    assert found["memory"]["experts"]["used"] == found["memory"]["experts"]["total"] > 0


def test_weights_that_are_not_in_memory() -> None:
    engine = Engine(pocket_path(), threads=1, context=256, load=False)
    service = Service(engine, Settings())
    (loading,) = snapshots(service, 1)
    assert loading["state"] == "loading"
    assert "map" not in loading
    assert loading["memory"]["dense"]["used"] == loading["memory"]["experts"]["used"] == 0
    engine.load()
    service.scheduler.ready = True
    (ready,) = snapshots(service, 1)
    assert ready["state"] == "ready"
    assert ready["memory"]["dense"]["used"] > 0
    engine.park()
    (parked,) = snapshots(service, 1)
    assert parked["state"] == "parked"
    assert parked["memory"]["experts"]["used"] == parked["memory"]["dense"]["used"] == 0


def test_a_server_that_ends_does_not_wait_for_those_who_watch(service: Service) -> None:
    own = Service(service.engine, Settings())
    own.scheduler.stop()
    with pytest.raises(StopAsyncIteration):
        snapshots(own, 1)


def test_a_gpus_steps_are_told_by_how_they_were_launched(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = service.engine.stats()
    device = {
        "name": "NVIDIA H200",
        "memory_bytes": 8,
        "used_bytes": 3,
        "steps_repeated": 5,
        "steps_launched": 2,
    }
    monkeypatch.setattr(service.engine, "stats", lambda: {**stats, "device": device})
    found = dashboard.snapshot(service, None)
    assert found["about"]["device"] == "NVIDIA H200"
    assert found["gpu"] == {"repeated": 5, "launched": 2}
    assert found["memory"]["gpu"] == {"used": 3, "limit": 8}
