"""Pictures of the page, by a browser: `python -m docs.generate.screenshots`, which is `make screenshots`.

Needs Chromium, and the packages that the tests need.  The answers are the pocket model's, but for the one that shows
what Markdown looks like: the pocket model writes none, so that answer has been edited, and says so.
"""

import shutil
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from benchmarks.served import Served

DOCS: Final = Path(__file__).parents[1]
SIZE: Final = {"width": 1280, "height": 800}
QUESTIONS: Final = ("What is 486 + 377?", "Tell me a short story.")
MARKDOWN: Final = r"""A turbine takes its power from the water's **head** and **flow**:

$$ P = \eta \, \rho \, g \, h \, Q $$

| Quantity | Symbol | Here |
|:---------|:------:|-----:|
| efficiency | $\eta$ | 0.9 |
| head | $h$ | 80 m |
| flow | $Q$ | 12 m³/s |

1. Multiply density, gravity, head and flow.
   - Water has $\rho = 1000$ kg/m³.
2. Take off what is lost.

```python
def power(head: float, flow: float, efficiency: float = 0.9) -> float:
    return efficiency * 1000 * 9.81 * head * flow  # watts

print(f"{power(80, 12) / 1e6:.1f} MW")
```
"""


def open_page(browser: Browser, url: str, scheme: str) -> Page:
    page = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1.5).new_page()  # type: ignore[arg-type]
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    return page


def say(page: Page, text: str) -> None:
    page.fill("#input", text)
    page.press("#input", "Enter")
    expect(page.locator("#send")).to_be_visible(timeout=60_000)
    expect(page.locator(".answer .rest")).to_have_count(0)


def settle(page: Page, thinking: str) -> None:
    page.click("#open-settings")
    page.fill("#set-temperature", "0")
    page.select_option("#set-thinking", thinking)
    page.click("#settings-done")


def chat_picture(page: Page) -> None:
    """Several conversations, one of them with Markdown."""
    settle(page, "none")
    for question in ("What is a penstock?", *QUESTIONS[1:]):
        say(page, question)
        page.click("#new-chat")
    say(page, "How much power does a turbine give?")
    page.click(".answer .edit")
    page.fill("#input", MARKDOWN)
    page.press("#input", "Enter")
    expect(page.locator(".answer math").first).to_be_visible()
    expect(page.locator("#state")).to_have_text("ready")
    page.mouse.move(0, 0)
    page.screenshot(path=DOCS / "page.png")


def engine_picture(page: Page) -> None:
    """An answer with its reasoning, and what the engine did meanwhile."""
    page.click("#toggle-list")
    page.click("#toggle-engine")
    settle(page, "high")
    for question in QUESTIONS:
        say(page, question)
    page.locator(".thinking summary").first.click()
    page.locator("#log").evaluate("log => (log.scrollTop = 0)")
    expect(page.locator("#map")).not_to_have_attribute("data-warm", "0")
    page.mouse.move(0, 0)
    page.screenshot(path=DOCS / "dashboard.png")


def main() -> None:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    with (
        Served("--memory", "380MiB", "--streaming", "direct") as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=found, args=["--no-sandbox"]) as browser,
    ):
        chat_picture(open_page(browser, server.url, "light"))
        engine_picture(open_page(browser, server.url, "dark"))


if __name__ == "__main__":
    main()
