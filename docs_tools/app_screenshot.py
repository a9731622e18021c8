"""Write `docs/images/app.png`: the playground with a photo, painted and refined.

It needs `pip install playwright` and a Chromium; the server is started here and stopped again.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from crfield.app import RunningApp

TARGET = Path(__file__).parents[1] / "docs" / "images" / "app.png"
SIZE = {"width": 1366, "height": 820}
COLORS = 192  # of the picture's palette: enough that nothing shows, a third of the bytes
NAMES = ["floor", "table", "saucer", "cup", "coffee", "spoon"]
# Label and the places of a stroke, as shares of the photo's width and height.
STROKES = [
    (0, [(0.02, 0.05), (0.12, 0.05)]),
    (1, [(0.05, 0.31), (0.19, 0.13)]),
    (1, [(0.4, 0.025), (0.56, 0.025)]),
    (1, [(0.72, 0.1), (0.85, 0.3), (0.88, 0.75)]),
    (1, [(0.05, 0.5), (0.1, 0.78), (0.2, 0.93)]),
    (1, [(0.28, 0.97), (0.5, 0.985), (0.72, 0.93)]),
    (2, [(0.18, 0.42), (0.2, 0.66), (0.3, 0.85), (0.48, 0.91), (0.66, 0.82), (0.75, 0.62)]),
    (3, [(0.32, 0.42), (0.37, 0.53), (0.48, 0.57), (0.57, 0.54)]),
    (3, [(0.34, 0.16), (0.46, 0.1), (0.6, 0.17)]),
    (3, [(0.645, 0.3), (0.61, 0.42)]),
    (3, [(0.37, 0.63), (0.36, 0.72)]),
    (4, [(0.42, 0.41), (0.57, 0.38)]),
    (4, [(0.38, 0.31), (0.47, 0.265), (0.57, 0.3)]),
    (5, [(0.57, 0.76), (0.63, 0.66)]),
    (5, [(0.69, 0.2), (0.665, 0.36)]),
]


def paint(page: Any, label: int, places: list[tuple[float, float]]) -> None:
    """One stroke with the mouse."""
    box = page.locator("#picture").bounding_box()
    points = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in places]
    page.keyboard.press(str(label + 1))
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=6)
    page.mouse.up()


def wait(page: Any, condition: str) -> None:
    """Wait for a JavaScript condition; the page's policy forbids Playwright's own way."""
    page.evaluate(
        "() => new Promise((resolve) => {"
        f" const check = () => ({condition}) ? resolve() : setTimeout(check, 20); check(); }})"
    )


def photograph(page: Any, url: str) -> bytes:
    """The page with a sample, painted and refined, as PNG."""
    page.goto(url)
    wait(page, "window.crfield?.ready")
    page.select_option("#samples", "coffee")
    wait(page, "crfield.state.planes && !crfield.state.busy")
    page.click("#clear")
    for field, name in zip(page.locator("#labels input[type=text]").all(), NAMES, strict=True):
        field.fill(name)
    page.locator("#labels input[type=text]").last.blur()
    for label, places in STROKES:
        paint(page, label, places)
        wait(page, "!crfield.state.busy")
    wait(page, "crfield.state.planes && crfield.lastLatency")
    page.mouse.move(5, 5)
    return page.screenshot()


def main() -> None:
    """Start the server, use the page, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    parser.add_argument("--dark", action="store_true", help="in the dark theme")
    options = parser.parse_args()
    with RunningApp() as app, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        page = browser.new_page(viewport=SIZE, color_scheme="dark" if options.dark else "light")
        picture = Image.open(io.BytesIO(photograph(page, app.url))).convert("RGB")
        browser.close()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    few = picture.quantize(COLORS, dither=Image.Dither.FLOYDSTEINBERG)
    few.save(options.output, optimize=True)
    print(f"{options.output}: {options.output.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
