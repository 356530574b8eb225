"""Asking and being answered."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.page.tab import STORY, Server, Tab


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
    expect(tab.page.locator("#state")).to_have_text("working")
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator(".answer .note").last).to_contain_text("stopped")
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
    reading = tab.page.locator(".answer .prefill")
    expect(reading).to_have_text(
        re.compile(r"Reading [\d,]+ of 1,0\d\d tokens · [\d.,]+ tok/s · \d+:\d\d left")
    )
    server.brake.allow()
    expect(reading).to_be_hidden()
    assert tab.answered()


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
    tab.page.click("#example-tools")
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
    tab.page.click(".again")  # the same call, and another result
    tab.page.fill(".results textarea", '{"temperature": 35}')
    tab.page.click(".results button")
    expect(tab.page.locator(".answer")).to_have_count(2)
    assert "35" in tab.answered()
    tab.page.keyboard.press("[")
    expect(tab.page.locator(".answer .text").last).to_contain_text("21")


def test_an_answer_held_to_a_schema_is_shown_as_json(tab: Tab) -> None:
    schema = '{"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}'
    tab.settle(form="json_schema", schema=schema, max="60")
    tab.say("What is 17 + 25?")
    assert json.loads(tab.answered().removeprefix("json\nCopy\n"))["sum"] is not None
    expect(tab.page.locator(".answer .code-block .nt").first).to_have_text('"sum"')


@pytest.mark.parametrize("thinking", ["none", "high"])
def test_an_answer_that_was_cut_goes_on(tab: Tab, thinking: str) -> None:
    tab.settle(max="8", thinking=thinking)
    tab.say("What is 486 + 377?" if thinking == "high" else STORY)
    expect(tab.page.locator(".answer .note").last).to_contain_text("cut at the limit")
    part = ".thoughts" if thinking == "high" else ".answer .text"
    begun = tab.page.locator(part).text_content()
    tab.settle(max="80", thinking=thinking)
    tab.page.click(".continue")
    tab.answered()
    expect(tab.page.locator(".answer")).to_have_count(1)
    whole = tab.page.locator(part).text_content()
    assert begun
    assert whole
    assert whole.startswith(begun)
    assert len(whole) > len(begun)
    if thinking == "high":
        assert tab.answered() == "863"


def test_probabilities_of_tokens(tab: Tab) -> None:
    tab.settle(probabilities=True)
    tab.say("What is 17 + 25?")
    assert tab.answered() == "42"
    tab.page.click(".show-tokens")
    tokens = tab.page.locator(".token")
    assert "".join(tokens.all_text_contents()) == "42"
    tokens.first.hover()
    expect(tab.page.locator(".alternative")).to_have_count(5)
    expect(tab.page.locator(".alternative.drawn")).to_contain_text(re.compile(r"\d %"))
    tab.page.locator(".tokens").focus()
    tab.page.keyboard.press("ArrowRight")
    expect(tokens.last).to_have_class(re.compile("pointed"))
    tab.page.click(".show-tokens")
    expect(tab.page.locator(".answer .text")).to_be_visible()


def test_any_turn_can_be_edited_and_retried_and_nothing_is_lost(tab: Tab) -> None:
    tab.settle()
    messages = tab.page.locator(".message")
    for question, answer in (("What is 17 + 25?", "42"), ("What is 20 + 30?", "50")):
        tab.say(question)
        assert tab.answered() == answer
    first = tab.page.locator(".user").first
    first.hover()
    first.locator(".edit").click()
    expect(tab.page.locator("#input")).to_have_value("What is 17 + 25?")
    tab.say("What is 11 + 11?")
    assert tab.answered() == "22"
    expect(messages).to_have_count(2)  # another branch, from the first message on
    expect(tab.page.locator(".user .branches")).to_contain_text("2 / 2")
    tab.page.click(".answer .retry")
    expect(tab.page.locator(".answer .branches")).to_contain_text("2 / 2")
    assert tab.answered() == "22"
    tab.page.click(".user [aria-label='Earlier version']")
    expect(messages).to_have_count(4)
    expect(tab.page.locator(".answer .text").last).to_have_text("50")
    tab.page.reload()
    expect(messages).to_have_count(4)
    tab.page.click(".user [aria-label='Later version']")
    expect(messages).to_have_count(2)
    expect(tab.page.locator(".answer .branches")).to_contain_text("2 / 2")


def test_an_answer_can_be_edited_and_the_next_one_follows_from_it(tab: Tab) -> None:
    tab.settle(max="10")
    tab.say("What is 17 + 25?")
    assert tab.answered() == "42"
    tab.page.click(".answer .edit")
    tab.say("**Seven**")
    expect(tab.page.locator(".answer strong")).to_have_text("Seven")
    expect(tab.page.locator(".answer .note").last).to_have_text("edited")
    assert tab.ask("Why?")["messages"][1] == {"role": "assistant", "content": "**Seven**"}
    tab.answered()


def test_errors_are_told_in_words(tab: Tab) -> None:
    tab.settle(max="5")
    tab.say("blue " * 3000)
    expect(tab.page.locator(".answer .error")).to_contain_text("2,048")  # tokens of the context
    tab.page.route("**/v1/chat/completions", lambda route: route.abort())
    tab.say("Hello")
    expect(tab.page.locator(".answer .error").last).to_have_text(
        "The server cannot be reached. Is it still running?"
    )
    tab.page.unroute("**/v1/chat/completions")
    tab.page.route("**/v1/chat/completions", lambda route: route.fulfill(body='data: {"choices": []}\n\n'))
    tab.say("Hello")
    expect(tab.page.locator(".answer .error").last).to_have_text(
        "The server ended the answer before it was whole."
    )
    tab.errors.clear()  # what the browser itself says of the refusals
