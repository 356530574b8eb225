"""By keys, by ear, on a phone, in the dark, with a key of the server's."""

from playwright.sync_api import Browser, expect

from penstock.server.http.settings import Settings
from penstock.server.service import Service
from tests.page.tab import PHONE, Server, Tab
from tests.server.serving import serving, small_engine


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
    wanted = {"send", "new-chat", "search", "toggle-list", "toggle-engine", "attach", "open-settings", "log"}
    for _ in range(60):  # once around; more if the page puts the focus back when an answer has ended
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


def test_shortcuts(tab: Tab) -> None:
    tab.settle(max="12")
    tab.say("What is 17 + 25?")
    tab.answered()
    press = tab.page.keyboard.press
    tab.page.locator("#log").focus()
    press("r")
    expect(tab.page.locator(".answer .branches")).to_contain_text("2 / 2")
    tab.answered()
    tab.page.locator("#log").focus()
    press("[")
    expect(tab.page.locator(".answer .branches")).to_contain_text("1 / 2")
    press("]")
    expect(tab.page.locator(".answer .branches")).to_contain_text("2 / 2")
    press("e")
    expect(tab.page.locator("#engine")).to_be_visible()
    press("e")
    press("l")
    expect(tab.page.locator("#list")).to_be_hidden()
    press("Control+k")
    expect(tab.page.locator("#search")).to_be_focused()
    press("Control+,")
    expect(tab.page.locator("#settings")).to_be_visible()
    press("Escape")
    press("Control+/")
    expect(tab.page.locator("#help-keys")).to_contain_text("New chat")
    press("Escape")
    press("Control+Shift+O")
    expect(tab.page.locator("#welcome")).to_be_visible()
    tab.page.keyboard.type("rnl?")  # where one writes, letters are letters
    expect(tab.page.locator("#input")).to_have_value("rnl?")
    tab.settle(keys=False)
    tab.page.locator("#log").focus()
    press("?")
    expect(tab.page.locator("#help")).to_be_hidden()


def test_the_last_message_can_be_edited_from_the_empty_field(tab: Tab) -> None:
    tab.settle(max="5")
    tab.say("What is 17 + 25?")
    tab.answered()
    tab.page.press("#input", "ArrowUp")
    expect(tab.page.locator("#input")).to_have_value("What is 17 + 25?")
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("#input")).to_have_value("")
    expect(tab.page.locator("#editing")).to_be_hidden()


def test_everything_has_a_name(tab: Tab) -> None:
    """For those who hear the page."""
    tab.settle(max="5", probabilities=True)
    tab.say("What is 17 + 25?")
    tab.answered()
    tab.page.click("#toggle-engine")
    nameless = tab.page.evaluate(
        """() => [...document.querySelectorAll("button, input:not([hidden]), textarea, select, nav, section, canvas")]
          .filter((each) => !(each.ariaLabel || each.textContent.trim() || each.labels?.length || each.title
            || each.getAttribute("aria-labelledby") || each.getAttribute("aria-label")))
          .map((each) => each.outerHTML)"""
    )
    assert nameless == []
    expect(tab.page.locator("#log")).to_have_attribute("aria-live", "polite")


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
    width = "() => [...document.querySelectorAll('html, .log, .engine, .list')].map(each => each.scrollWidth)"
    expect(tab.page.locator("#list")).to_be_hidden()
    tab.settle(max="10")
    tab.say("Say " + "averyveryverylongword" * 6)
    tab.answered()
    assert all(each <= PHONE["width"] for each in tab.page.evaluate(width))
    expect(tab.page.locator("#engine")).to_be_hidden()
    tab.page.tap("#toggle-list")
    expect(tab.page.locator(".conversation")).to_be_visible()
    assert all(each <= PHONE["width"] for each in tab.page.evaluate(width))
    tab.page.tap(".conversation .title")
    expect(tab.page.locator("#list")).to_be_hidden()
    tab.page.tap("#toggle-engine")
    expect(tab.page.locator("#map")).to_be_visible()
    expect(tab.page.locator("#chat")).to_be_hidden()
    expect(tab.page.locator("#tile-decode b")).not_to_have_text("–")
    assert all(each <= PHONE["width"] for each in tab.page.evaluate(width))
    tab.context.close()
    assert tab.errors == []


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
