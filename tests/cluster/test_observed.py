"""What /metrics and the page say of a cluster."""

import re
import time
from typing import Any

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families as parse

from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.observe.dashboard import snapshot
from penstock.server.service import Service
from tests.cluster.machines import Hired, cluster, open_head


def series(service: Service) -> dict[tuple[str, str], float]:
    """By name and machine.  The engine ends with it."""
    with TestClient(create_app(service)) as client:
        text = client.get("/metrics").text
    return {
        (sample.name, sample.labels.get("machine", "")): sample.value
        for family in parse(text)
        for sample in family.samples
        if sample.name.startswith(("penstock_cluster", "penstock_machine"))
    }


def until_told(engine: Engine, name: str) -> dict[str, Any]:
    """What the last machine says of itself, once it has said this."""
    while True:
        found: dict[str, Any] = engine.stats()["cluster"]["members"][-1]
        if name in found and "round_trip_seconds" in found:
            return found
        time.sleep(0.05)


def test_stages_their_load_and_their_links() -> None:
    with cluster(pocket_path(), 2, context=512) as engine:
        engine.session().feed(list(range(100, 150)))
        while until_told(engine, "rows")["rows"] < 50:
            time.sleep(0.05)
        service = Service(engine, Settings())
        shown = snapshot(service, None)["cluster"]
        assert re.fullmatch(r"0:(\d),\1:8", ",".join(each["layers"] for each in shown["members"]))
        assert all("address" not in each for each in shown["members"])
        found = series(service)
        assert found["penstock_cluster_up", ""] == 1
        assert found["penstock_cluster_stages", ""] == found["penstock_cluster_stages_wanted", ""] == 2
        assert found["penstock_cluster_groups_total", ""] == 1
        for machine in ("0", "1"):
            assert found["penstock_machine_rows_total", machine] == 50
            assert found["penstock_machine_busy_seconds_total", machine] > 0
        assert found["penstock_machine_sent_bytes_total", "0"] > 50 * 4 * engine.config.hidden * 4
        assert found["penstock_machine_round_trip_seconds", "1"] > 0


def test_expert_workers() -> None:
    engine, port = open_head(pocket_path(), 1, context=512)
    worker = Hired(pocket_path(), port, share=0.5)
    engine.load()
    until_told(engine, "experts")
    engine.session().feed(list(range(100, 150)))
    while not until_told(engine, "rows")["rows"]:
        time.sleep(0.05)
    service = Service(engine, Settings())
    assert snapshot(service, None)["cluster"]["members"][1]["experts"][0] == 0
    found = series(service)
    assert found["penstock_machine_rows_total", "1"] > 0
    assert found["penstock_machine_waited_seconds_total", "1"] >= 0
    engine.close()
    worker.wait()


def test_one_machine_says_nothing_of_others() -> None:
    service = Service(Engine(pocket_path(), threads=1, context=512, memory=None, learn="off"), Settings())
    assert series(service) == {}
    assert snapshot(service, None)["cluster"] is None
