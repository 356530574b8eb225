"""/metrics says what happened, in words that Prometheus and the dashboard understand."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.steps import Step
from penstock.errors import ContextLengthError
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.observe.machine_series import COUNTERS, GAUGES, machine_series
from penstock.server.service import Service
from penstock.server.usage import Usage

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Server:
    """An application of its own, with storage that counts."""

    def __init__(self, client: TestClient, service: Service):
        self.client, self.service = client, service

    def series(self) -> Series:
        text = self.client.get("/metrics").text
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in parse(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.series().get((name, tuple(sorted(labels.items()))), 0.0)

    def ask(self, prompt: list[int], tokens: int, take: int | None = None) -> list[int]:
        """The first `take` tokens of an answer of `tokens`."""

        async def run() -> list[int]:
            found: list[int] = []
            stream = self.service.complete(prompt, tokens, GREEDY, Usage())
            async with aclosing(stream):
                async for update in stream:
                    if isinstance(update, Step):
                        found.append(update.token)
                        if len(found) == take:
                            break
            return found

        assert self.client.portal is not None
        return self.client.portal.call(run)


def serve(**settings: object) -> tuple[Service, TestClient]:
    engine = Engine(pocket_path(), threads=1, streaming="resident", context=256)
    service = Service(engine, Settings(parallel=2, **settings))  # type: ignore[arg-type]
    return service, TestClient(create_app(service))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    service, client = serve()
    with client:
        yield Server(client, service)


def test_tokens_are_counted_by_where_they_came_from(server: Server) -> None:
    def counts() -> list[float]:
        return [
            server.value("penstock_prompt_tokens_total", source="read"),
            server.value("penstock_prompt_tokens_total", source="cached"),
            server.value("penstock_generated_tokens_total"),
        ]

    prompt = list(range(100, 140))
    before = counts()
    server.ask(prompt, 5)
    first = counts()
    assert [after - earlier for after, earlier in zip(first, before, strict=True)] == [40, 0, 5]
    server.ask([*prompt, 7], 2)
    assert [after - earlier for after, earlier in zip(counts(), first, strict=True)] == [1, 40, 2]


def test_an_answer_that_nobody_waits_for_is_counted_as_far_as_it_was_told(server: Server) -> None:
    before = server.value("penstock_generated_tokens_total")
    server.ask(list(range(200, 220)), 50, take=3)
    assert server.value("penstock_generated_tokens_total") - before == 3


def test_the_first_token_is_timed_once_for_a_prompt(server: Server) -> None:
    name = "penstock_time_to_first_token_seconds"
    before = server.series()
    server.ask([3, 4, 5], 4)
    after = server.series()
    assert after[name + "_count", ()] - before[name + "_count", ()] == 1
    assert after[name + "_sum", ()] > before[name + "_sum", ()]


def test_what_the_storage_did_is_what_the_engine_says(server: Server) -> None:
    server.ask(list(range(8, 72)), 3)  # long enough to be kept
    found, stats = server.series(), server.service.engine.stats()
    for number, block in enumerate(stats["blocks"]):
        for statistic in ("hits", "misses", "bytes_read", "stall_seconds"):
            name = f"penstock_expert_{statistic}_total"
            assert found[name, (("block", str(number)),)] == pytest.approx(block[statistic])
    assert found["penstock_expert_misses_total", (("block", "0"),)] > 0
    assert found["penstock_cache_bytes", ()] == stats["cached_bytes"] > 0
    assert found["penstock_capacity_bytes", ()] == stats["capacity_bytes"]
    assert found["penstock_session_pool_bytes", ()] == server.service.scheduler.prefix_cache.bytes > 0


def test_llamacpp_names_say_the_same(server: Server) -> None:
    server.ask(list(range(50, 70)), 3)
    found = {name: value for (name, labels), value in server.series().items() if not labels}
    assert found["llamacpp:prompt_tokens_total"] == server.value(
        "penstock_prompt_tokens_total", source="read"
    )
    assert found["llamacpp:tokens_predicted_total"] == found["penstock_generated_tokens_total"]
    assert found["llamacpp:n_decode_total"] == found["penstock_steps_total"] > 0
    rows = found["penstock_batch_rows_total"] / found["penstock_steps_total"]
    assert found["llamacpp:n_busy_slots_per_decode"] == pytest.approx(rows)
    assert found["llamacpp:requests_processing"] == found["llamacpp:requests_deferred"] == 0
    assert found["llamacpp:n_tokens_max"] >= 23
    assert found["llamacpp:prompt_seconds_total"] > 0
    assert found["llamacpp:tokens_predicted_seconds_total"] > 0


def test_a_refused_prompt_is_an_error_of_its_kind(server: Server) -> None:
    before = server.value("penstock_errors_total", kind="context_length_exceeded")
    with pytest.raises(ContextLengthError):
        server.ask([1] * 256, 5)
    assert server.value("penstock_errors_total", kind="context_length_exceeded") - before == 1


def test_prompts_are_counted_by_where_their_beginning_was_found(server: Server) -> None:
    def counts() -> list[float]:
        labels = (("none", "new"), ("memory", ""), ("none", "changed"))
        return [
            server.value("penstock_kv_lookups_total", source=source, reason=reason)
            for source, reason in labels
        ]

    prompt = list(range(600, 640))
    before = counts()
    server.ask(prompt, 100)
    server.ask([*prompt, 9], 100)
    server.service.scheduler.prefix_cache._idle[:] = [
        idle for idle in server.service.scheduler.prefix_cache._idle if idle.session.position > 100
    ]  # only the ends of those answers, which cannot return to where the next prompt differs
    server.ask([*prompt[:20], 1], 1)
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [1, 1, 1]


def test_memory_by_tier(server: Server) -> None:
    server.ask([8, 9], 3)
    found, stats = server.series(), server.service.engine.stats()
    assert found["penstock_memory_bytes", (("tier", "experts"),)] == stats["cached_bytes"] > 0
    assert (
        found["penstock_memory_bytes", (("tier", "sessions"),)] == server.service.scheduler.prefix_cache.bytes
    )
    assert found["penstock_memory_limit_bytes", (("tier", "experts"),)] == stats["capacity_bytes"]


def test_the_state_of_the_model(server: Server) -> None:
    states = {
        dict(labels)["state"]: value for (name, labels), value in server.series().items() if "_state" in name
    }
    assert states == {"loading": 0, "ready": 1, "parked": 0, "waking": 0, "failed": 0}


def test_refusals_are_errors_of_their_kind(server: Server) -> None:
    def counts() -> list[float]:
        kinds = ("context_length_exceeded", "invalid_value", "not_found")
        return [server.value("penstock_errors_total", kind=kind) for kind in kinds]

    before = counts()
    server.client.post(
        "/v1/completions", json={"prompt": [1] * 300}
    )  # refused by the scheduler: counted once
    server.client.post("/v1/completions", json={"prompt": 1.5})
    server.client.get("/no/such/path")
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [1, 1, 1]


def test_requests_are_counted_by_route_and_status(server: Server) -> None:
    def counts() -> list[float]:
        return [
            server.value("penstock_requests_total", endpoint=endpoint, status=status)
            for endpoint, status in (
                ("/health", "200"),
                ("/slots/{id_slot}", "400"),
                ("/tokenize", "400"),
                ("other", "404"),
            )
        ]

    before = counts()
    server.client.get("/health")
    server.client.post("/slots/1?action=save", json={})
    server.client.post("/tokenize", json={"content": 5})
    server.client.get("/no/such/path")
    server.client.get("/nor/this")
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [1, 1, 1, 2]


def test_the_doors_refusals_are_counted_too() -> None:
    service, client = serve(api_keys=("secret",))
    with client:
        assert client.get("/props").status_code == 401
        client.headers["authorization"] = "Bearer secret"
        found = Server(client, service).series()
    assert found["penstock_requests_total", (("endpoint", "other"), ("status", "401"))] == 1


def test_a_stream_lasts_until_its_end() -> None:
    _, client = serve()
    router = APIRouter()

    @router.get("/streamed")
    def streamed() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "one"
            seen.append(registry.get_sample_value("penstock_requests_total", labels))
            yield "two"

        return StreamingResponse(parts())

    seen: list[float | None] = []
    labels = {"endpoint": "/streamed", "status": "200"}
    app: FastAPI = client.app  # type: ignore[assignment]
    app.include_router(router)
    registry: CollectorRegistry = app.state.metrics.registry
    with client:
        assert client.get("/streamed").text == "onetwo"
    seen.append(registry.get_sample_value("penstock_requests_total", labels))
    assert seen == [None, 1]


def test_prometheus_may_ask_for_openmetrics(server: Server) -> None:
    answer = server.client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(answer.text)}  # type: ignore[no-untyped-call]
    assert {"penstock_requests", "penstock_steps", "llamacpp:prompt_tokens"} <= names


def test_metrics_can_be_off() -> None:
    service, client = serve(metrics=False)
    with client:
        answer = client.get("/metrics")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == 404
        assert len(Server(client, service).ask([1, 2], 2)) == 2


def test_every_query_of_the_dashboard_names_series_that_exist(server: Server) -> None:
    server.ask([4, 5, 6], 2)
    with pytest.raises(ContextLengthError):
        server.ask([1] * 256, 5)
    existing = {name for name, _ in server.series()}
    machine = {"name": "one", "stage": 0} | dict.fromkeys((name for name, *_ in (*COUNTERS, *GAUGES)), 1.0)
    cluster = {"up": True, "stages": 1, "epochs": 1, "members": [machine]}
    existing |= {sample.name for family in machine_series(cluster) for sample in family.samples}
    queries = [
        target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]
    ]
    assert len(queries) > 10
    for query in queries:
        names = set(re.findall(r"\b(?:penstock_|llamacpp:)\w+", query))
        assert names, query
        assert names <= existing, query


def test_drafts_are_counted_by_drafter_and_place(server: Server) -> None:
    server.ask(list(range(100, 140)) * 3, 40)
    stats = server.client.get("/props").json()["penstock"]["speculation"]
    assert stats["steps_with_drafts"] > 0  # some are tried to learn what they cost
    for drafter, counts in stats["drafted"].items():
        for place, count in enumerate(counts, 1):
            labels = {"drafter": drafter, "place": str(place)}
            assert server.value("penstock_draft_tokens_total", **labels) == count
            accepted = server.value("penstock_draft_accepted_tokens_total", **labels)
            assert accepted == stats["accepted"][drafter][place - 1] <= count
    decisions = [
        server.value("penstock_draft_steps_total", decision=name) for name in ("plain", "explored", "drafted")
    ]
    assert sum(decisions) == stats["steps"]
    assert server.value("penstock_draft_gain") > 0
