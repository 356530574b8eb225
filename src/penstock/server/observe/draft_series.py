"""What drafts did, for Prometheus."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def draft_series(stats: dict[str, Any] | None) -> Iterator[Metric]:
    """Tokens that were guessed and checked, by their place after the certain one, and what that came to."""
    if stats is None:
        return
    drafted = CounterMetricFamily(
        "penstock_draft_tokens", "Tokens that were guessed ahead.", labels=("drafter", "place")
    )
    accepted = CounterMetricFamily(
        "penstock_draft_accepted_tokens", "Guesses that were right.", labels=("drafter", "place")
    )
    for family, counts in ((drafted, stats["drafted"]), (accepted, stats["accepted"])):
        for drafter, places in counts.items():
            for place, count in enumerate(places, 1):
                family.add_metric((drafter, str(place)), count)
        yield family
    steps = CounterMetricFamily(
        "penstock_draft_steps", "Decoding steps, by what the gate decided.", labels=("decision",)
    )
    steps.add_metric(("plain",), stats["steps"] - stats["steps_with_drafts"])
    steps.add_metric(("explored",), stats["steps_to_explore"])
    steps.add_metric(("drafted",), stats["steps_with_drafts"] - stats["steps_to_explore"])
    yield steps
    yield GaugeMetricFamily(
        "penstock_draft_gain", "Estimated speed with drafts, in terms of that without.", stats["gain"]
    )
    yield GaugeMetricFamily(
        "penstock_draft_saved_seconds", "Estimated time that drafts have saved.", stats["saved_seconds"]
    )
