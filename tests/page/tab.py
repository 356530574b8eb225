"""The page in a real browser, on a real server, with a model that streams its experts."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect

from penstock.engine.engine import Engine
from penstock.server.http.settings import Settings
from penstock.server.service import Service
from tests.server.serving import serving, small_engine

STORY: Final = "Tell me a short story."
DESK: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 375, "height": 667}
PATIENCE: Final = 60_000  # milliseconds; a busy machine is slow, not wrong

expect.set_options(timeout=PATIENCE)


class Brake:
    """Lets an engine take as many steps as it is told, or any number."""

    def __init__(self, engine: Engine):
        self._begin, self._left = engine.stepper.begin, float("inf")
        self._changed = threading.Condition()
        engine.stepper.begin = self.begin  # type: ignore[method-assign, assignment]

    def allow(self, steps: float = float("inf")) -> None:
        with self._changed:
            self._left = steps
            self._changed.notify_all()

    def begin(self, work: Sequence[Any], *more: Any) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0)
            self._left -= 1
        return self._begin(work, *more)


class Server:
    def __init__(self, service: Service, url: str, brake: Brake):
        self.service, self.url, self.brake = service, url, brake


@contextmanager
def new_server() -> Iterator[Server]:
    engine = small_engine()
    brake = Brake(engine)
    service = Service(engine, Settings(parallel=2))
    with serving(service) as url:
        yield Server(service, url, brake)
        brake.allow()


class Tab:
    """The page, opened; what goes wrong in it."""

    def __init__(self, browser: Browser, url: str, **options: Any):
        self.context = browser.new_context(**{"viewport": DESK, "accept_downloads": True, **options})
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.watch(self.page)
        self.page.goto(url)
        self.page.wait_for_selector("body[data-ready]")

    def watch(self, page: Page) -> None:
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def settle(self, **fields: str | bool) -> None:
        """Greedy answers, and other settings by name."""
        self.page.click("#open-settings")
        for name, value in {"temperature": "0", **fields}.items():
            field = self.page.locator(f"#set-{name}")
            if isinstance(value, bool):
                field.set_checked(value)
            elif field.evaluate("field => field.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        self.page.click("#settings-done")
        expect(self.page.locator("#settings")).to_be_hidden()

    def say(self, text: str) -> None:
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def ask(self, text: str) -> Any:
        """What is sent for a message."""
        with self.page.expect_request("**/v1/chat/completions") as sent:
            self.say(text)
        return sent.value.post_data_json

    def answered(self) -> str:
        """The last answer, once it is whole and laid out."""
        expect(self.page.locator("#send")).to_be_visible()
        expect(self.page.locator(".answer .rest")).to_have_count(0)
        return self.page.locator(".answer .text").last.inner_text()

    def render(self, text: str) -> str:
        """The elements that come of a text, in an answer that grows letter by letter and is then whole."""
        found: str = self.page.evaluate(
            """async (text) => {
              const { Rendered } = await import("/dashboard/assets/rendered.js");
              const place = document.createElement("div");
              document.querySelector("#log").append(place);
              const rendered = new Rendered(place);
              const calm = async () => { while (rendered.running) await new Promise((done) => setTimeout(done, 5)); };
              for (const share of [0.3, 0.6, 0.9]) {
                rendered.show(text.slice(0, share * text.length), false);
                await new Promise((done) => setTimeout(done, 20));
              }
              rendered.show(text, true);
              await calm();
              for (const button of place.querySelectorAll("button")) button.remove();
              const found = place.innerHTML;
              place.remove();
              return found;
            }""",
            text,
        )
        return found
