"""The dashboard in a real browser, on a real server, with a model that streams its experts."""

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.engine.engine import Engine
from penstock.server.http.settings import Settings
from penstock.server.service import Service
from tests.server.test_dashboard import serving, small_engine

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import Browser, Page, expect, sync_playwright

STORY: Final = "Tell me a short story."
DESK: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 375, "height": 667}


class Brake:
    """Lets an engine take as many steps as it is told, or any number."""

    def __init__(self, engine: Engine):
        self._advance, self._left = engine.advance, float("inf")
        self._changed = threading.Condition()
        engine.advance = self.advance  # type: ignore[method-assign, assignment]

    def allow(self, steps: float = float("inf")) -> None:
        with self._changed:
            self._left = steps
            self._changed.notify_all()

    def advance(self, work: Sequence[Any], *more: Any) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0)
            self._left -= 1
        return self._advance(work, *more)


class Server:
    def __init__(self, service: Service, url: str, brake: Brake):
        self.service, self.url, self.brake = service, url, brake


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    engine = small_engine()
    brake = Brake(engine)
    service = Service(engine, Settings(parallel=2))
    with serving(service) as url:
        yield Server(service, url, brake)
        brake.allow()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("there is no Chromium: install it, or run `playwright install chromium`")
        with playwright.chromium.launch(executable_path=found, args=["--no-sandbox"]) as browser:
            yield browser


class Tab:
    """The page, opened; what goes wrong in it."""

    def __init__(self, browser: Browser, url: str, **options: Any):
        self.context = browser.new_context(**{"viewport": DESK, **options})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.errors: list[str] = []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url)

    def settle(self, **fields: str) -> None:
        """Greedy answers, and other settings by name."""
        self.page.click("#open-settings")
        self.page.fill("#set-temperature", "0")
        for name, value in fields.items():
            if name == "thinking":
                self.page.select_option("#set-thinking", value)
            else:
                self.page.fill(f"#set-{name}", value)
        self.page.click("#settings-done")

    def say(self, text: str) -> None:
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def answered(self) -> str:
        """The last answer, once it is whole."""
        expect(self.page.locator("#send")).to_be_visible()
        return self.page.locator(".answer .text").last.inner_text()


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Tab]:
    tab = Tab(browser, server.url)
    yield tab
    server.brake.allow()
    tab.context.close()
    assert tab.errors == []


def test_an_answer_streams_and_can_be_stopped(tab: Tab, server: Server) -> None:
    tab.settle()
    text = tab.page.locator(".answer .text")
    server.brake.allow(6)
    tab.say(STORY)
    expect(text).not_to_be_empty()
    begun = text.inner_text()
    expect(tab.page.locator(".answer")).to_have_attribute("aria-busy", "true")
    server.brake.allow(10)
    expect(text).not_to_have_text(begun)  # more has come, and all of it is held back now
    expect(tab.page.locator("#slots progress")).to_be_visible()
    expect(tab.page.locator("#state")).to_have_text("working")
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator(".answer .note")).to_contain_text("stopped")
    expect(tab.page.locator(".answer")).to_have_attribute("aria-busy", "false")
    expect(tab.page.locator("#send")).to_be_visible()
    server.brake.allow()
    expect(tab.page.locator("#state")).to_have_text("ready")
    assert begun in text.inner_text()
    assert server.service.scheduler.active == 0


def test_reading_a_long_prompt_shows_how_far_it_is(tab: Tab, server: Server) -> None:
    tab.settle(max="3")
    server.brake.allow(2)  # of more pieces that the prompt is read in
    tab.say("blue " * 1000)
    reading = tab.page.locator(".answer .reading")
    expect(reading).to_have_text(
        re.compile(r"Reading [\d,]+ of 1,0\d\d tokens · [\d.,]+ tok/s · \d+:\d\d left")
    )
    server.brake.allow()
    expect(reading).to_be_hidden()
    assert tab.answered()


def test_the_map_and_the_instruments_follow(tab: Tab) -> None:
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


def test_thinking_is_shown_apart_and_can_be_unfolded(tab: Tab, server: Server) -> None:
    tab.settle(thinking="high")
    server.brake.allow(8)
    tab.say("What is 17 + 25?")
    expect(tab.page.locator(".thoughts")).to_be_visible()  # live, while nothing else has been said
    server.brake.allow()
    assert tab.answered() == "42"
    expect(tab.page.locator(".thoughts")).to_be_hidden()
    tab.page.click(".thinking summary")
    expect(tab.page.locator(".thoughts")).to_contain_text("17")


def test_a_tool_is_called_and_told_its_result(tab: Tab) -> None:
    tab.page.click("#open-settings")
    tab.page.click("#example-tool")
    tab.page.click("#settings-done")
    tab.settle()
    tab.say("What is the weather in Paris?")
    card = tab.page.locator(".call")
    expect(card).to_contain_text("get_weather")
    expect(card).to_contain_text('"city": "Paris"')
    tab.page.fill(".results textarea", '{"temperature": 21}')
    tab.page.click(".results button")
    expect(tab.page.locator(".answer")).to_have_count(2)
    assert "21" in tab.answered()


def test_the_last_question_can_be_edited_and_the_answer_retried(tab: Tab) -> None:
    tab.settle()
    tab.say("What is 17 + 25?")
    assert tab.answered() == "42"
    tab.page.locator(".user").hover()
    tab.page.click(".edit")
    expect(tab.page.locator("#input")).to_have_value("What is 17 + 25?")
    tab.say("What is 20 + 30?")
    assert tab.answered() == "50"
    expect(tab.page.locator(".message")).to_have_count(2)
    tab.page.click(".retry")
    assert tab.answered() == "50"
    tab.page.reload()  # the tab remembers
    expect(tab.page.locator(".message")).to_have_count(2)
    tab.page.click("#new-chat")
    expect(tab.page.locator(".message")).to_have_count(0)
    expect(tab.page.locator("#welcome")).to_be_visible()


def test_what_is_written_is_never_read_as_html(tab: Tab) -> None:
    tab.settle(max="10")
    tab.say("<img src=x onerror=alert(1)><b>bold</b>")
    tab.answered()
    expect(tab.page.locator(".user .text")).to_have_text("<img src=x onerror=alert(1)><b>bold</b>")
    shown = tab.page.evaluate(
        """async () => {
          const { Markdown } = await import("/dashboard/assets/markdown.js");
          const place = document.createElement("div"), writer = new Markdown(place);
          const text = "# Title\\n\\n**bold** and `a<b>`\\n<img src=x>\\n\\n- one\\n- two\\n\\n"
            + "```html\\n<script>\\n```\\nend";
          for (let length = 0; length <= text.length; length += 1) writer.show(text.slice(0, length));
          return place.innerHTML.replace(/<button.*?button>/g, "");
        }"""
    )
    assert shown == (
        "<h3>Title</h3><p><strong>bold</strong> and <code>a&lt;b&gt;</code>\n&lt;img src=x&gt;</p>"
        "<ul><li>one</li><li>two</li></ul>"
        '<div class="code-block"><div class="code-head"><span>html</span></div>'
        '<pre tabindex="0"><code>&lt;script&gt;</code></pre></div><p>end</p>'
    )


def test_keys_are_enough(tab: Tab) -> None:
    tab.settle(max="10")
    tab.page.focus("#input")
    tab.page.keyboard.type("What is")
    tab.page.keyboard.press("Shift+Enter")
    tab.page.keyboard.type("17 + 25?")
    expect(tab.page.locator("#input")).to_have_value("What is\n17 + 25?")
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator(".user .text")).to_have_text("What is\n17 + 25?")
    tab.answered()
    tab.page.focus("#input")
    seen: set[str] = set()
    wanted = {"send", "new-chat", "open-settings", "map"}
    for _ in range(40):  # once around; more if the page puts the focus back when an answer has ended
        if wanted <= seen:
            break
        tab.page.keyboard.press("Tab")
        focused = tab.page.evaluate(
            "() => [document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle]"
        )
        if focused[0] and focused[0] != "input":  # whose frame shows it
            assert focused[1] != "none", focused[0]
        seen.add(focused[0])
    assert wanted <= seen


def test_light_and_dark(tab: Tab) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    tab.page.emulate_media(color_scheme="light")
    light = tab.page.evaluate(ground)
    tab.page.emulate_media(color_scheme="dark")
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
    assert tab.page.evaluate(ground) != light
    tab.page.click("#theme")
    assert tab.page.evaluate(ground) == light
    tab.page.reload()
    assert tab.page.evaluate(ground) == light  # what was chosen counts more than the system


def test_a_phone_shows_one_thing_at_a_time_and_all_of_its_width(browser: Browser, server: Server) -> None:
    tab = Tab(browser, server.url, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    width = "() => [document.documentElement, ...document.querySelectorAll('.log, .engine')].map(e => e.scrollWidth)"
    tab.settle(max="10")
    tab.say("Say " + "averyveryverylongword" * 6)
    tab.answered()
    assert all(each <= PHONE["width"] for each in tab.page.evaluate(width))
    expect(tab.page.locator("#engine")).to_be_hidden()
    tab.page.tap("[data-show=engine]")
    expect(tab.page.locator("#map")).to_be_visible()
    expect(tab.page.locator("#chat")).to_be_hidden()
    expect(tab.page.locator("#tile-decode b")).not_to_have_text("–")
    assert all(each <= PHONE["width"] for each in tab.page.evaluate(width))
    tab.context.close()
    assert tab.errors == []


def test_weights_that_are_parked(tab: Tab) -> None:
    tab.settle()
    tab.page.click("#park")
    expect(tab.page.locator("#state")).to_have_text("parked")
    expect(tab.page.locator("#notice")).to_contain_text("parked")
    expect(tab.page.locator("#map")).to_have_attribute("data-present", "0")
    tab.page.click("#wake")
    expect(tab.page.locator("#state")).to_have_text("ready")
    expect(tab.page.locator("#notice")).to_be_hidden()
    tab.say("What is 17 + 25?")
    assert tab.answered() == "42"


def test_a_server_with_a_key(browser: Browser) -> None:
    with serving(Service(small_engine(), Settings(api_keys=("secret",)))) as url:
        tab = Tab(browser, url)
        door = tab.page.locator("#door")
        expect(door).to_be_visible()
        for key in ("wrong", "secret"):
            tab.page.fill("#door-key", key)
            tab.page.press("#door-key", "Enter")
            if key == "wrong":
                expect(tab.page.locator("#door-text")).to_contain_text("does not open")
        expect(door).to_be_hidden()
        expect(tab.page.locator("#state")).to_have_text("ready")
        tab.settle()
        tab.say("What is 17 + 25?")
        assert tab.answered() == "42"
        assert len(tab.errors) == 2  # what the browser itself says of the two refusals
        assert all("401" in error for error in tab.errors)
        tab.context.close()
