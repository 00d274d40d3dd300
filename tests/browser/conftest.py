"""JupyterLab in headless Chromium; without a browser its tests are skipped with one line."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.browser.canary import Canary
from tests.browser.jupyterlab import FLAGS, Lab, Server

HERE = Path(__file__).parent
SIZE: Any = {"width": 1200, "height": 900}
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def _browser() -> str | None:
    named = os.environ.get("WASM_KERNEL_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


ENDING = ExitStack()
"""Resources that are closed after the folder's last test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Ends the browser with this folder, as its loop must not run beside other tests' loops."""
    yield
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        ENDING.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A JupyterLab server for the whole run."""
    missing = [name for name in ("jupyterlab", "playwright") if not importlib.util.find_spec(name)]
    missing += [] if _browser() else ["a Chromium"]
    if missing:
        pytest.skip(f"the tests in JupyterLab need {' and '.join(missing)}")
    running = Server(tmp_path_factory.mktemp("lab"))
    ENDING.callback(running.close)
    return running


@pytest.fixture(scope="session")
def browser(server: Server) -> Any:
    """A browser for the whole run with one profile, so that it keeps loaded files in its cache."""
    from playwright.sync_api import sync_playwright

    playwright = ENDING.enter_context(sync_playwright())
    started = playwright.chromium.launch(executable_path=_browser(), args=FLAGS)
    ENDING.callback(started.close)
    return started.new_context(viewport=SIZE)


@pytest.fixture(scope="session")
def shared(browser: Any, server: Server) -> Lab:
    """One page for all tests that don't harm it, as JupyterLab takes seconds to load."""
    return Lab(browser.new_page(), server)


@pytest.fixture
def lab(shared: Lab) -> Lab:
    """The shared page, in the size that most tests need."""
    shared.page.set_viewport_size(SIZE)
    shared.outside.clear()
    return shared


@pytest.fixture
def target(browser: Any, server: Server) -> Iterator[Lab]:
    """A new page, to be attacked."""
    others = set(browser.pages)
    yield Lab(browser.new_page(), server)
    for page in set(browser.pages) - others:
        page.close()


@pytest.fixture
def canary() -> Iterator[Canary]:
    """A server that no page may ask."""
    listening = Canary()
    yield listening
    listening.close()


@pytest.fixture(scope="session")
def portraits() -> Path:
    """A folder for screenshots, for people to look at."""
    folder = Path(__file__).resolve().parents[2] / "build" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
