"""What the engine is doing."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.page.tab import STORY, Server, Tab, new_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One whose experts are all on the disk still."""
    with new_server() as server:
        yield server


def test_the_engine_is_quiet_until_somebody_wants_to_know(tab: Tab) -> None:
    engine = tab.page.locator("#engine")
    expect(tab.page.locator("#state")).to_have_text("ready")
    expect(engine).to_be_hidden()
    tab.page.click("#toggle-engine")
    expect(engine).to_be_visible()
    expect(tab.page.locator("#memory")).to_contain_text("Experts")
    tab.page.reload()
    expect(engine).to_be_visible()  # it stays as it was left
    tab.page.click("#toggle-engine")
    expect(engine).to_be_hidden()


def test_the_map_and_the_instruments_follow(tab: Tab) -> None:
    tab.page.click("#toggle-engine")
    tab.settle()
    map = tab.page.locator("#map")
    expect(map).to_have_attribute("aria-label", re.compile(r"9 × 16, .* % in memory"))
    snapshot = "canvas => canvas.toDataURL()"
    before = map.evaluate(snapshot)
    tab.say(STORY)
    tab.answered()
    for id in ("decode", "hits", "disk"):
        expect(tab.page.locator(f"#tile-{id} b")).to_have_text(re.compile("[1-9]"))
    expect(map).not_to_have_attribute("data-warm", "0")
    assert map.evaluate(snapshot) != before
    map.focus()
    tab.page.keyboard.press("ArrowDown")
    expect(tab.page.locator("#map-cell")).to_have_text(
        re.compile(r"^layer 1, expert 0: (in memory|on disk), heat")
    )
    expect(tab.page.locator("#memory")).to_contain_text("Experts")


def test_weights_that_are_parked(tab: Tab) -> None:
    tab.settle()
    tab.page.click("#toggle-engine")
    tab.page.click("#park")
    expect(tab.page.locator("#state")).to_have_text("parked")
    expect(tab.page.locator("#notice")).to_contain_text("parked")
    expect(tab.page.locator("#map")).to_have_attribute("data-present", "0")
    tab.page.click("#wake")
    expect(tab.page.locator("#state")).to_have_text("ready")
    expect(tab.page.locator("#notice")).to_be_hidden()
    tab.say("What is 17 + 25?")
    assert tab.answered() == "42"
