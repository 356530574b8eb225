"""Settings, and what else goes with a question."""

from pathlib import Path

from playwright.sync_api import expect

from tests.page.tab import Tab


def test_wrong_settings_are_not_taken(tab: Tab) -> None:
    tab.page.click("#open-settings")
    for name, wrong in (("tools", "[{}]"), ("schema", "{"), ("top_p", "2"), ("max", "0")):
        tab.page.fill(f"#set-{name}", wrong)
        tab.page.click("#settings-done")
        expect(tab.page.locator("#settings")).to_be_visible()
        assert tab.page.eval_on_selector(f"#set-{name}", "field => field.validationMessage"), name
        tab.page.fill(f"#set-{name}", "")
    tab.page.click("#settings-done")
    expect(tab.page.locator("#settings")).to_be_hidden()


def test_enter_takes_settings_and_cancel_does_not(tab: Tab) -> None:
    for key, kept in (("Enter", "7"), ("Escape", "7"), (None, "7")):
        tab.page.click("#open-settings")
        tab.page.fill("#set-seed", "7" if key == "Enter" else "8")
        if key is None:
            tab.page.click("#settings-cancel")
        else:
            tab.page.press("#set-seed", key)
        expect(tab.page.locator("#settings")).to_be_hidden()
        expect(tab.page.locator("#chosen")).to_have_text(f"seed {kept}")


def test_settings_are_sent(tab: Tab) -> None:
    given = {
        "system": "Be brief.",
        "temperature": "0.5",
        "top_p": "0.9",
        "top_k": "40",
        "min_p": "0.05",
        "repetition_penalty": "1.1",
        "presence_penalty": "0.2",
        "frequency_penalty": "-0.1",
        "seed": "7",
        "max": "5",
        "stop": "one\ntwo",
        "thinking": "low",
    }
    tab.settle(**given, probabilities=True)
    body = tab.ask("Hello")
    tab.answered()
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    expected = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.1,
        "seed": 7,
        "max_tokens": 5,
        "stop": ["one", "two"],
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 5,
    }
    assert {name: body[name] for name in expected} == expected
    expect(tab.page.locator("#chosen")).to_contain_text("top-k 40")


def test_files_go_along_as_text(tab: Tab, tmp_path: Path) -> None:
    tab.settle(max="5")
    (tmp_path / "notes.txt").write_text("The gate is green.")
    (tmp_path / "bad.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "pic.png").write_bytes(b"\x89PNG")
    tab.page.set_input_files(
        "#file-picker", [tmp_path / name for name in ("notes.txt", "bad.bin", "pic.png")]
    )
    expect(tab.page.locator("#files .file")).to_have_count(1)
    expect(tab.page.locator(".toast").first).to_contain_text("bad.bin: it is not text")
    expect(tab.page.locator(".toast").last).to_contain_text("pic.png: the model reads text only")
    body = tab.ask("Which colour?")
    block = "[file name]: notes.txt\n[file content begin]\nThe gate is green.\n[file content end]"
    assert body["messages"] == [{"role": "user", "content": f"{block}\n\nWhich colour?"}]
    tab.answered()
    expect(tab.page.locator(".user details.file")).to_contain_text("notes.txt")


def test_files_can_be_dropped(tab: Tab) -> None:
    tab.page.evaluate(
        """() => {
          const dropped = new DataTransfer();
          dropped.items.add(new File(["x = 1"], "a.py", { type: "text/x-python" }));
          const about = { dataTransfer: dropped, bubbles: true, cancelable: true };
          const drop = (name) => document.body.dispatchEvent(new DragEvent(name, about));
          ["dragenter", "dragover", "drop"].forEach(drop);
        }"""
    )
    expect(tab.page.locator("#files .file")).to_contain_text("a.py")
    tab.page.click("[aria-label='Remove a.py']")
    expect(tab.page.locator("#files")).to_be_hidden()
