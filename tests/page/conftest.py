"""One browser and one server for all tests of the page."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.page.tab import Server, Tab, new_server


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    with new_server() as server:
        yield server


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("there is no Chromium: install it, or run `playwright install chromium`")
        with playwright.chromium.launch(executable_path=found, args=["--no-sandbox"]) as browser:
            yield browser


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Tab]:
    tab = Tab(browser, server.url)
    yield tab
    server.brake.allow()
    tab.context.close()
    assert tab.errors == []
