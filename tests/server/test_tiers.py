"""A model in tiers, served: what each tier holds and has done."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families as parse

from penstock.backend.device import ExpertSeconds
from penstock.engine.sampling import Sampling
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.observe.dashboard import snapshot
from penstock.server.service import Service
from penstock.weights.synth import synth
from tests.storage.tiers.double import Double, open_double, smallest_vram

MIB = 1 << 20


def test_what_tiers_did_is_what_the_engine_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, device = tmp_path / "m.gguf", Double(seconds=ExpertSeconds(1e-6, (1e-4, 4e-4, 1.6e-3)))
    synth(path, width="tiny", ratios=(0, 4, 128, 4), hash_layers=1, mix="q8_0")
    vram = smallest_vram(path, device) + 2 * MIB
    memory = (2 << 30) + 3 * MIB
    engine = open_double(monkeypatch, path, device, vram=vram, memory=memory)
    list(engine.generate([1, 2, 3], 6, Sampling(temperature=0, ignore_eos=True)))
    service = Service(engine, Settings(name="tiers"))
    with TestClient(create_app(service)) as client:
        stats = engine.stats()
        text = client.get("/metrics").text
        shown = snapshot(service, None)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(text)
        for sample in family.samples
    }
    for tier, statistic in (("gpu", "device_hits"), ("memory", "memory_hits"), ("disk", "disk_reads")):
        assert found["penstock_tier_hits_total", tier] == stats[statistic]
    assert found["penstock_tier_experts_computed_total", "cpu"] == stats["on_host"]
    assert found["penstock_tier_link_bytes_total", "gpu"] == stats["link_bytes"]
    plan = engine.plan
    assert plan.tiers is not None
    assert shown["memory"]["experts"]["limit"] == plan.experts_held
    assert 0 < shown["memory"]["experts"]["used"] <= plan.experts_held
    assert 0 < shown["memory"]["ram"]["used"] <= shown["memory"]["ram"]["limit"] == plan.tiers.held
    assert shown["about"]["mode"] == "tiers"
    assert shown["storage"] is None
    assert shown["tiers"] == {name: stats[name] for name in shown["tiers"]}
    assert shown["tiers"]["device_misses"] > 0
