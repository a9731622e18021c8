"""A browser that uses the playground as a person would."""

import os
import runpy
import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
# Where a browser must be there, its absence is a failure.
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and "CRFIELD_NEED_BROWSER" not in os.environ, reason="the page needs chromium"
)
# The page shows a result, and no other is on its way.
DONE = "crfield.state.planes && !crfield.state.busy"
# A refused file is one failed request, which the browser reports by itself.
EXPECTED_ERROR = "Failed to load resource"


@contextmanager
def checked_page(browser, url, **options):
    """The page, which must end without faults in its console and its requests."""
    page = open_page(browser, url, **options)
    yield page
    page.context.close()
    assert page.faults == []


def open_page(browser, url, **options):
    """The page, ready; what its console and its requests should not hold goes to `page.faults`."""
    page = browser.new_context(viewport={"width": 1366, "height": 768}, **options).new_page()
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda line: note_console(page, line))
    page.on("request", lambda request: note_request(page, request, url))
    page.goto(url)
    until(page, "window.crfield?.ready")
    return page


def note_console(page, line):
    if line.type in ("error", "warning") and EXPECTED_ERROR not in line.text:
        page.faults.append(line.text)


def note_request(page, request, url):
    parts = urlsplit(request.url)
    if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(url).netloc:
        page.faults.append(f"a request to {request.url}")


def until(page, condition):
    """Wait for a JavaScript condition; the page's policy forbids Playwright's own way."""
    page.evaluate(
        "() => new Promise((resolve, reject) => {"
        "  const end = performance.now() + 30000;"
        f"  const check = () => ({condition}) ? resolve()"
        f"    : performance.now() > end ? reject(new Error({condition!r})) : setTimeout(check, 5);"
        "  check(); })"
    )


def open_sample(page, name="coffee"):
    page.select_option("#samples", name)
    until(page, f"crfield.state.image?.source.sample === '{name}' && {DONE}")


def upload(page, path):
    page.set_input_files("#image-file", path)
    until(page, f"crfield.state.image?.name === '{path.name}'")


def paint(page, label, *places):
    """A stroke through places given as shares of the picture's width and height."""
    if label is not None:
        page.keyboard.press(str(label + 1))
    box = page.locator("#picture").bounding_box()
    points = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in places]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=4)
    page.mouse.up()


def paint_two_labels(page):
    paint(page, 0, (0.1, 0.1), (0.8, 0.05))
    paint(page, 1, (0.45, 0.45), (0.6, 0.5))


def plane(page, name):
    """One of the page's planes, (H, W): scribbles, after, before or entropy."""
    source = "scribbles.plane" if name == "scribbles" else f"planes.{name}"
    # Bytes travel as characters whose low bytes they are, much faster than as a list of numbers.
    text = page.evaluate(f"new TextDecoder('x-user-defined').decode(crfield.state.{source})")
    size = page.evaluate("[crfield.state.image.height, crfield.state.image.width]")
    values = np.frombuffer(text.encode("utf-16-le"), np.uint16)
    return (values & 0xFF).astype(np.uint8).reshape(size)


def change_number(page, key, value):
    field = page.locator(f"#number-{key}")
    field.fill(str(value))
    field.blur()


def refined_after(page, act):
    """Do something and wait for the result that follows from it."""
    drawn = page.evaluate("crfield.state.drawn")
    act()
    until(page, f"crfield.state.drawn > {drawn} && {DONE}")


def save_as(page, button, path):
    with page.expect_download() as download:
        page.click(button)
    download.value.save_as(path)
    return download.value.suggested_filename


def mask_of_script(page, monkeypatch, folder):
    """What the script that the page shows writes, run in a folder with the saved scribbles."""
    save_as(page, "#save-scribbles", folder / "scribbles.png")
    page.click("#save-snippet")
    expect(page.locator("#snippet")).to_contain_text("import crfield")
    (folder / "script.py").write_text(page.locator("#snippet").text_content())
    page.keyboard.press("Escape")
    monkeypatch.chdir(folder)
    runpy.run_path("script.py")
    return read_pixels("mask.png")


def tab_to(page, element):
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == element:
            return
    raise AssertionError(f"Tab does not reach {element}")


def read_pixels(path):
    """The values of a picture's file, as they are stored."""
    with Image.open(path) as picture:
        return np.asarray(picture)
