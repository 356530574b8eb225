"""Markdown as the page shows it."""

import re

from playwright.sync_api import expect

from tests.page.tab import Tab
from tests.server.hostile_markdown import ATTACKS


def test_markdown_is_laid_out_as_it_grows(tab: Tab) -> None:
    text = (
        "# Title\n\n**bold** `a<b>` [x](https://a.b)\n\n- one\n  - two\n\n| a |\n|--:|\n| 1 |\n\n$x$\n\n"
        "```python\nx = 1\n```\n\n[late]\n\n[late]: https://c.d\n"
    )
    assert tab.render(text) == (
        '<h3>Title</h3><p><strong>bold</strong> <code>a&lt;b&gt;</code> <a target="_blank" '
        'rel="noopener noreferrer nofollow" href="https://a.b">x</a></p>'
        "<ul><li>one<ul><li>two</li></ul></li></ul>"
        '<div class="table" tabindex="0" role="group" aria-label="Table"><table><thead><tr>'
        '<th class="right">a</th></tr></thead><tbody><tr><td class="right">1</td></tr></tbody></table></div>'
        '<p><math display="inline"><mrow><mi>x</mi></mrow></math></p>'
        '<div class="code-block"><div class="code-head"><span class="language">python</span></div>'
        '<pre tabindex="0"><code><span class="n">x</span> <span class="o">=</span> '
        '<span class="mi">1</span></code></pre></div><p><a target="_blank" rel="noopener noreferrer nofollow" href="https://c.d">late</a></p>'
    )


def test_only_the_last_block_is_sent_again(tab: Tab) -> None:
    sent: list[int] = []
    tab.page.on(
        "request",
        lambda request: sent.append(len(request.post_data or "")) if "markdown" in request.url else None,
    )
    paragraph = "word " * 200
    tab.page.evaluate(
        """async (paragraph) => {
          const { Rendered } = await import("/dashboard/assets/rendered.js");
          const rendered = new Rendered(document.createElement("div"));
          let text = "";
          for (let number = 0; number < 10; number += 1) {
            text += `${paragraph}${number}\n\n`;
            rendered.show(text, false);
            while (rendered.running) await new Promise((done) => setTimeout(done, 5));
          }
        }""",
        paragraph,
    )
    assert len(sent) == 10
    assert max(sent) < 3 * len(paragraph)


def test_a_text_of_many_parts_is_laid_out_whole(tab: Tab) -> None:
    paragraphs = [f"Number *{number}* " + "and so on " * 50 for number in range(200)]  # 100,000 letters
    shown = tab.render("\n\n".join(paragraphs))
    assert shown.count("<p>") == shown.count("<em>") == len(paragraphs)


def test_without_the_renderer_words_are_still_words(tab: Tab) -> None:
    tab.page.route("**/dashboard/markdown", lambda route: route.abort())
    tab.settle()
    tab.say("What is 17 + 25?")
    expect(tab.page.locator("#send")).to_be_visible()
    expect(tab.page.locator(".answer .rest")).to_have_text("42")
    tab.errors.clear()  # what the browser itself says of the requests


def test_what_is_written_is_never_read_as_html(tab: Tab) -> None:
    dialogs: list[str] = []
    tab.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    elsewhere: list[str] = []
    tab.page.on(
        "request", lambda request: elsewhere.append(request.url) if "127.0.0.1" not in request.url else None
    )
    tab.settle(max="3")
    tab.say(ATTACKS[1])
    tab.answered()
    expect(tab.page.locator(".user .text")).to_have_text(ATTACKS[1])
    text = "\n\n".join(ATTACKS).encode("utf-8", "replace").decode()
    shown = tab.render(text) + "".join(tab.render(f"{attack}\n") for attack in ATTACKS[:12])
    assert not re.search(r"<(script|img|svg|iframe|style|base|meta|form|object|embed|link)\b", shown)
    assert not re.search(r"<[^>]*\s(on\w+|style|srcdoc|xlink:href)=", re.sub(r'"[^"]*"', '""', shown))
    assert all(re.match("(https?:|mailto:)", link) for link in re.findall(r'<a [^>]*href="([^"]*)"', shown))
    assert tab.page.evaluate("window.hacked") is None
    assert dialogs == elsewhere == []


def test_trees_of_a_server_that_lies_are_held_to_the_list(tab: Tab) -> None:
    tab.page.route(
        "**/dashboard/markdown",
        lambda route: route.fulfill(
            json={
                "blocks": [
                    [0, ["script", {}, ["window.hacked = true"]], False],
                    [
                        1,
                        [
                            "p",
                            {"onclick": "x", "style": "x"},
                            [["a", {"href": "javascript:x", "onclick": "x"}, ["y"]]],
                        ],
                        False,
                    ],
                    [2, ["img", {"src": "x", "onerror": "x"}, []], False],
                    [3, ["__proto__", {}, ["z"]], False],
                ]
            }
        ),
    )
    assert tab.render("abc") == (
        '<span>window.hacked = true</span><p><a target="_blank" rel="noopener noreferrer nofollow">y</a></p>'
        "<span></span><span>z</span>"
    )
    assert tab.page.evaluate("window.hacked") is None
