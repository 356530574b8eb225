"""GET /: the page, its parts, and Markdown for it."""

import re
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.testclient import TestClient

from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.page.page import ASSETS
from penstock.server.service import Service

FOLDER = Path(str(resources.files("penstock.server.page") / "static"))
FILES = sorted(path.name for path in FOLDER.iterdir())
PAGE = (FOLDER / "index.html").read_text()
NAMES: Final = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}  # which nobody fetches


@pytest.mark.parametrize("path", ["/", *(ASSETS + name for name in FILES)])
def test_every_part_comes_with_its_type_and_the_rules_for_it(client: TestClient, path: str) -> None:
    reply: Any = client.get(path)
    assert reply.status_code == 200
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    kind = kinds.get(path.rpartition(".")[2], "text/html")
    assert reply.headers["content-type"].split(";")[0] == kind
    assert reply.headers["x-content-type-options"] == "nosniff"
    rules = reply.headers["content-security-policy"]
    assert rules.startswith("default-src 'self';")
    assert "unsafe" not in rules
    assert "require-trusted-types-for 'script'" in rules


def test_parts_name_only_parts_that_exist() -> None:
    asked = re.findall(rf'(?:href|src)="{ASSETS}([^"]+)"', PAGE)
    for name in FILES:
        if name.endswith(".js"):
            asked += re.findall(r'^import .* from "\./([^"]+)";$', (FOLDER / name).read_text(), re.M)
    assert {"main.js", "style.css", "chat.js"} <= set(asked) <= set(FILES)
    assert set(FILES) - set(asked) == {"index.html"}


def test_the_page_needs_nobody_else_and_runs_nothing_inline() -> None:
    text = {name: (FOLDER / name).read_text() for name in FILES}
    for name, content in text.items():
        addresses = set(re.findall(r"https?://[^\s\"']+", content))
        assert addresses <= NAMES, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", content), (
            name
        )
    assert not re.search(r"<style|<script>|\sstyle=|\son\w+=", PAGE)


def test_elements_that_scripts_look_for_are_on_the_page() -> None:
    ids = set(re.findall(r'\bid="([^"]+)"', PAGE))
    for name in FILES:
        asked = set(re.findall(r'(?:byId|getElementById)\("([\w-]+)"\)', (FOLDER / name).read_text()))
        assert asked <= ids, name


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2fpage.py", "../page.py", "page.py", "__init__.py", ".", ""]
)
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(ASSETS + name).status_code == 404


def test_the_page_is_for_everybody_and_the_numbers_are_not(service: Service) -> None:
    guarded = TestClient(create_app(Service(service.engine, Settings(api_keys=("secret",)))))
    assert guarded.get("/").status_code == 200
    assert guarded.get(ASSETS + "main.js").status_code == 200
    for path in ("/dashboard/events", "/dashboard", "/dashboard/assets", "/props"):
        assert guarded.get(path).status_code == 401, path
