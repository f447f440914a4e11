"""Headless Chromium for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """The installed Chromium, else playwright's own. Its thread can run no other event loop while it is open."""
    with sync_playwright() as playwright:
        installed = next(filter(None, map(shutil.which, BROWSERS)), playwright.chromium.executable_path)
        if not Path(installed).exists():
            pytest.skip("no Chromium was found: `make browser` installs one")
        browser = playwright.chromium.launch(executable_path=installed, args=FLAGS)
        yield browser
        browser.close()
