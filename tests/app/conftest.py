"""The playground's server, a browser, and the page in it."""

import pytest


@pytest.fixture(scope="module")
def app():
    """The playground's server; whoever needs it has made sure that its libraries are there."""
    from crfield.app import RunningApp

    with RunningApp() as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    """Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    from app_page import ARGUMENTS, CHROMIUM

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def page(app, browser):
    """The playground's page, which must end without complaints in its console."""
    from app_page import checked_page

    with checked_page(browser, app.url) as opened:
        yield opened
