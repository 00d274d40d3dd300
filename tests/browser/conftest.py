"""JupyterLab in headless Chromium; without a browser its tests are left out, in one line."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.canary import Canary
from tests.browser.jupyterlab import FLAGS, Lab, Server

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def _browser() -> str | None:
    named = os.environ.get("WASM_KERNEL_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def _missing() -> str:
    modules = [name for name in ("jupyterlab", "playwright") if not importlib.util.find_spec(name)]
    missing = modules + ([] if _browser() else ["a Chromium"])
    return " and ".join(missing)


@pytest.fixture(scope="session")
def server(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A JupyterLab server for the whole run."""
    missing = _missing()
    if missing:
        pytest.skip(f"the tests in JupyterLab need {missing}")
    running = Server(tmp_path_factory.mktemp("lab"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser(server: Server) -> Iterator[Any]:
    """A browser for one file: Playwright's loop must not run beside other tests' loops."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=_browser(), args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def lab(browser: Any, server: Server) -> Iterator[Lab]:
    """A page of its own."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    yield Lab(context.new_page(), server)
    context.close()


@pytest.fixture
def canary() -> Iterator[Canary]:
    """A server that nobody may ask."""
    listening = Canary()
    yield listening
    listening.close()


@pytest.fixture(scope="session")
def portraits() -> Path:
    """Where pictures of what was seen are left, for people to look at."""
    folder = Path(__file__).resolve().parents[2] / "build" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
