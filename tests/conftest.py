"""Shared settings of the tests."""

import os

# The references are small: more BLAS threads only fight with the threads under test.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Triton looks at it once, when whichever test comes first imports `crfield.nn`.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

EXAMPLES = int(os.environ.get("CRFIELD_EXAMPLES", "60"))

# Examples are the same in every run, and nothing depends on how fast the machine is.
settings.register_profile("crfield", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.load_profile("crfield")


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
    from app_page import open_page

    opened = open_page(browser, app.url)
    yield opened
    opened.context.close()
    assert opened.faults == []
