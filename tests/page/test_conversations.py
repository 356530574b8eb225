"""The list of conversations."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page.tab import STORY, Server, Tab


def test_conversations_are_kept_found_and_renamed(tab: Tab) -> None:
    tab.settle(max="12")
    rows = tab.page.locator(".conversation")
    for question in ("What is a penstock?", "What is 17 + 25?"):
        tab.page.click("#new-chat")
        expect(tab.page.locator("#welcome")).to_be_visible()
        tab.say(question)
        tab.answered()
    expect(rows).to_have_count(2)
    tab.page.reload()
    expect(rows).to_have_count(2)
    expect(tab.page.locator(".user .text")).to_have_text("What is 17 + 25?")  # the one that was open
    tab.page.click("text=What is a penstock? >> nth=0")
    expect(tab.page.locator(".answer .text")).to_contain_text("pipe")
    tab.page.fill("#search", "PIPE carries")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("penstock")
    tab.page.fill("#search", "nowhere")
    expect(tab.page.locator(".nothing")).to_have_text("Nothing found.")
    tab.page.fill("#search", "")
    rows.filter(has_text="penstock").locator(".rename").click()
    tab.page.keyboard.type("Water")
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator(".conversation.open")).to_contain_text("Water")
    expect(tab.page).to_have_title("Water · Penstock")
    tab.page.reload()
    expect(rows.filter(has_text="Water")).to_have_count(1)


def test_what_was_deleted_comes_back(tab: Tab) -> None:
    tab.settle(max="12")
    tab.say("What is 17 + 25?")
    tab.answered()
    rows = tab.page.locator(".conversation")
    tab.page.click(".conversation .delete")
    expect(rows).to_have_count(0)
    expect(tab.page.locator("#welcome")).to_be_visible()
    tab.page.click(".toast button")
    expect(rows).to_have_count(1)
    expect(tab.page.locator(".answer .text")).to_have_text("42")
    tab.page.click("#delete-all")
    expect(rows).to_have_count(0)
    tab.page.click(".toast button")
    expect(rows).to_have_count(1)
    tab.page.reload()
    expect(rows).to_have_count(1)


def test_a_conversation_goes_out_and_comes_in_with_its_branches(tab: Tab, tmp_path: Path) -> None:
    tab.settle()
    tab.say("What is 17 + 25?")
    tab.answered()
    tab.page.click(".retry")
    expect(tab.page.locator(".answer .branches")).to_contain_text("2 / 2")
    tab.answered()
    with tab.page.expect_download() as download:
        tab.page.click(".conversation .export")
    assert download.value.suggested_filename == "What-is-17-25.json"
    file = tmp_path / "one.json"
    download.value.save_as(file)
    kept = json.loads(file.read_text())
    assert [len(each["messages"]) for each in kept["conversations"]] == [3]
    tab.page.click("#delete-all")
    tab.page.set_input_files("#import-picker", file)
    tab.page.click(".conversation .title")
    expect(tab.page.locator(".answer .branches")).to_contain_text("2 / 2")
    expect(tab.page.locator(".answer .text")).to_have_text("42")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "format"),
        ('{"format": "penstock-conversations", "version": 2, "conversations": []}', "version is 2"),
        (
            '{"format": "penstock-conversations", "version": 1, "conversations": [{}]}',
            "Conversation 1: it has no messages",
        ),
        (
            '{"format": "penstock-conversations", "version": 1, "conversations": [{"messages": '
            '[{"id": "a", "role": "user", "content": "x", "parent": "b"}]}]}',
            "message 1 follows one that is not there",
        ),
    ],
)
def test_a_file_that_is_no_export_is_refused_in_words(
    tab: Tab, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)
    tab.page.set_input_files("#import-picker", file)
    expect(tab.page.locator(".toast")).to_contain_text(words)
    expect(tab.page.locator(".conversation")).to_have_count(0)


def test_an_answer_comes_on_while_another_conversation_is_open(tab: Tab, server: Server) -> None:
    tab.settle()
    server.brake.allow(6)
    tab.say(STORY)
    expect(tab.page.locator(".answer .text")).not_to_be_empty()
    tab.page.click("#new-chat")
    expect(tab.page.locator("#send")).to_be_visible()
    server.brake.allow()
    tab.say("What is 17 + 25?")
    assert tab.answered() == "42"
    tab.page.locator(".conversation", has_text=STORY).locator(".title").click()
    expect(tab.page.locator(".answer .note").last).to_contain_text("tokens")
    assert len(tab.answered()) > 200


def test_another_tab_sees_the_same_list(tab: Tab, server: Server) -> None:
    other = tab.context.new_page()
    tab.watch(other)
    other.goto(server.url)
    tab.settle(max="12")
    tab.say("What is 17 + 25?")
    tab.answered()
    expect(other.locator(".conversation")).to_have_count(1)
    other.click(".conversation .title")
    expect(other.locator(".answer .text")).to_have_text("42")


def test_an_answer_that_was_interrupted_is_kept(tab: Tab, server: Server) -> None:
    tab.settle()
    server.brake.allow(12)
    tab.say(STORY)
    text = tab.page.locator(".answer .text")
    expect(text).not_to_be_empty()
    expect(tab.page.locator(".conversation")).to_have_count(1)
    tab.page.reload()
    server.brake.allow()
    expect(tab.page.locator(".answer .note").last).to_contain_text("interrupted")
