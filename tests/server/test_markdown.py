"""Markdown becomes trees of known elements, whatever is written."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from penstock.server.http.app import create_app
from penstock.server.http.errors import ApiError
from penstock.server.http.settings import Settings
from penstock.server.page import code, formulas, worker
from penstock.server.page.markdown import blocks
from penstock.server.page.page import LONGEST
from penstock.server.page.renderer import Renderer
from penstock.server.service import Service
from tests.server.hostile_markdown import ATTACKS, SLOW

PATH: Final = "/dashboard/markdown"
PLAIN: Final = str.split(
    "p h3 h4 h5 h6 ul ol li blockquote pre code em strong s a hr br table thead tbody tr th td span input"
)
ATTRIBUTES: Final = {
    "a": {"href", "title"},
    "ol": {"start"},
    "td": {"class"},
    "th": {"class"},
    "span": {"class"},
    "pre": {"lang"},
    "input": {"type", "checked"},
}


def html(text: str) -> str:
    """The trees of a text, written as HTML would be; text as it is."""

    def written(node: Any) -> str:
        if isinstance(node, str):
            return node
        tag, attributes, children = node
        head = tag + "".join(f" {name}={value}" for name, value in attributes.items())
        return f"<{head}>{''.join(map(written, children))}</{tag}>"

    return "".join(written(block.node) for block in blocks(text))


def elements(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    def walk(node: Any) -> Iterator[tuple[str, dict[str, str]]]:
        if not isinstance(node, str):
            yield node[0], node[1]
            for child in node[2]:
                yield from walk(child)

    for block in blocks(text):
        yield from walk(block.node)


def words(node: Any) -> str:
    return node if isinstance(node, str) else "".join(map(words, node[2]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a *b* **c** ~~d~~ `e`", "<p>a <em>b</em> <strong>c</strong> <s>d</s> <code>e</code></p>"),
        ("# a\n\n#### b", "<h3>a</h3><h6>b</h6>"),
        ("a\nb", "<p>a<br></br>b</p>"),
        ("- a\n  - b\n\n3. c", "<ul><li>a<ul><li>b</li></ul></li></ul><ol start=3><li>c</li></ol>"),
        ("> a\n>> b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        (
            "- [x] a\n- [ ] b",
            "<ul><li><input type=checkbox checked=></input> a</li><li><input type=checkbox></input> b</li></ul>",
        ),
        ("> [x] a", "<blockquote><p>[x] a</p></blockquote>"),
        (
            "|a|b|\n|-|-:|\n|1|2|",
            "<table><thead><tr><th>a</th><th class=right>b</th></tr></thead>"
            "<tbody><tr><td>1</td><td class=right>2</td></tr></tbody></table>",
        ),
        ('[a](https://b.c "d")', "<p><a href=https://b.c title=d>a</a></p>"),
        ("https://b.c/d, main.py", "<p><a href=https://b.c/d>https://b.c/d</a>, main.py</p>"),
        ("[a][b]\n\n[b]: mailto:c@d", "<p><a href=mailto:c@d>a</a></p>"),
        ("![a](https://b.c)", "<p><a href=https://b.c>a</a></p>"),
        ("```\n<b>\n```", "<pre lang=><b></pre>"),
        ("```nosuch x\na\n```", "<pre lang=nosuch>a</pre>"),
        (
            "```python\nx = 1",
            "<pre lang=python><span class=n>x</span> <span class=o>=</span> <span class=mi>1</span></pre>",
        ),
        ("<b>a</b>", "<p><b>a</b></p>"),
        ("***", "<hr></hr>"),
    ],
)
def test_what_people_and_models_write(text: str, shown: str) -> None:
    assert html(text) == shown


@pytest.mark.parametrize(
    "text",
    ["$x$", "\\(x\\)", "a $x$ b", "**$x$**", "- $x$", "$$x$$", "\\[x\\]", "$$\nx\n$$", "> $$\n> x\n> $$"],
)
def test_formulas_are_mathml(text: str) -> None:
    shown = html(text)
    assert f"<math display={'block' if '$$' in text or '[' in text else 'inline'}>" in shown
    assert "<mi>x</mi>" in shown


@pytest.mark.parametrize(
    "text",
    [
        "$5 or $6",
        "a $ b $ c",
        "$x",
        "$$x",
        "\\(x",
        "costs \\$5 and \\$6",
        "`$x$`",
        "```\n$x$\n```",
        "$$\n\nx\n\n$$",
    ],
)
def test_money_and_code_are_no_formulas(text: str) -> None:
    assert "<math" not in html(text)


def test_a_formula_that_cannot_be_read_is_shown_as_it_was_written() -> None:
    assert html("$\\frac$") == "<p><code>\\frac</code></p>"
    long = "x" * (formulas.LONGEST + 1)
    assert words(blocks(f"$${long}$$")[0].node) == long


def test_blocks_say_where_they_begin_and_whether_code_goes_on() -> None:
    text = "a\r\nb\r\n\r\n- c\n- d\n\n```py\ne\n```\n~~~\nf"
    assert [(block.line, block.open) for block in blocks(text)] == [
        (0, False),
        (3, False),
        (6, False),
        (9, True),
    ]


def test_rendering_from_the_last_block_on_gives_the_same() -> None:
    """What the page does while an answer comes."""
    text = "# a\n\nb *c*\n- d\n\n  e\n- f\n\n| g |\n|---|\n| h |\n\n```js\nlet i;\n```\n\n> j\n\n$$k$$\n\nl"
    whole = [block.node for block in blocks(text)]
    settled: list[Any] = []
    begin = 0
    for end in range(len(text) + 1):
        found = blocks(text[begin:end])
        if len(found) > 1:
            settled += [block.node for block in found[:-1]]
            begin += len("".join(text[begin:end].splitlines(keepends=True)[: found[-1].line]))
    assert [*settled, *(block.node for block in blocks(text[begin:]))] == whole


@pytest.mark.parametrize(
    "language", ["python", "json", "html", "c++", "Rust", "sh", "diff", "php", "nosuch", ""]
)
@pytest.mark.parametrize("source", ["", "\n\n  a\t b\n\n", '{"a": [1, "<b>"]}', "é\u2028</span>\r", "'''"])
def test_highlighting_changes_no_character(language: str, source: str) -> None:
    assert "".join(map(words, code.highlighted(source, language))).replace("\r", "\n") == source.replace(
        "\r", "\n"
    )


# ── strangers' texts ──────────────────────────────────────────────────────────────────────────────────────


def check_safe(text: str) -> None:
    for tag, attributes in elements(text):
        if tag in formulas.TAGS:
            assert set(attributes) <= formulas.ATTRIBUTES
        else:
            assert tag in PLAIN
            assert set(attributes) <= ATTRIBUTES.get(tag, set())
        assert re.match(r"(https?://|mailto:)", attributes.get("href", "https://"), re.IGNORECASE)


@pytest.mark.parametrize("text", ATTACKS)
def test_nothing_but_known_elements_comes_of_an_attack(text: str) -> None:
    check_safe(text)
    check_safe(f"- {text}")
    check_safe(f"# a\n\n{text}\n\nb")


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab01 \n\t-*_`~>#|[]()<>!$\\{}:/&;=\"'é\0")))
def test_nothing_but_known_elements_comes_of_any_text(text: str) -> None:
    check_safe(text)


@pytest.mark.parametrize("text", SLOW, ids=lambda text: ascii(text[:12]))
def test_every_text_is_rendered_or_given_up(text: str) -> None:
    """The limit is in time of computing, so that a busy machine does not matter."""
    found = worker.answer(json.dumps(text).encode())
    assert found is None or isinstance(found, list)


def test_code_that_takes_too_long_is_shown_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "SECONDS", 0.02)
    source = "\n " * 10_000
    assert code.highlighted(source, "python") == [source]


# ── the endpoint ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_gets_its_blocks(client: TestClient) -> None:
    reply: Any = client.post(PATH, json={"text": "*a*\n\nb"})
    assert reply.status_code == 200
    assert reply.json() == {
        "blocks": [[0, ["p", {}, [["em", {}, ["a"]]]], False], [2, ["p", {}, ["b"]], False]]
    }


def test_others_pages_do_not(service: Service) -> None:
    open_to_all = TestClient(create_app(Service(service.engine, Settings(cors=("*",)))))
    for site, status in (("cross-site", 403), ("same-site", 403), ("none", 403)):
        reply = open_to_all.post(PATH, json={"text": "a"}, headers={"sec-fetch-site": site})
        assert reply.status_code == status, site
    form = open_to_all.post(PATH, content="text=a", headers={"content-type": "text/plain"})
    assert form.status_code == 415


def test_it_needs_the_key(service: Service) -> None:
    guarded = TestClient(create_app(Service(service.engine, Settings(api_keys=("secret",)))))
    assert guarded.post(PATH, json={"text": "a"}).status_code == 401


@pytest.mark.parametrize("body", [{}, {"text": 1}, {"text": None}, {"text": "a" * (LONGEST + 1)}, []])
def test_what_is_no_text_or_too_long_is_refused(client: TestClient, body: Any) -> None:
    reply: Any = client.post(PATH, json=body)
    assert reply.status_code == 400
    assert "text" in reply.json()["error"]["message"] or body == []


def test_a_text_that_takes_too_long_costs_only_itself() -> None:
    renderer = Renderer()

    async def render() -> None:
        with pytest.raises(ApiError, match="too much time"):
            await renderer.render("\\[a\n" * 400_000)
        assert await renderer.render("a") == [[0, ["p", {}, ["a"]], False]]

    try:
        asyncio.run(render())
    finally:
        renderer.close()


def test_a_renderer_that_died_is_replaced() -> None:
    renderer = Renderer()

    async def render() -> None:
        await renderer.render("a")
        process = renderer._process
        assert process is not None
        process.kill()
        process.wait()
        assert await renderer.render("b") == [[0, ["p", {}, ["b"]], False]]

    try:
        asyncio.run(render())
    finally:
        renderer.close()
    assert renderer._process is None
