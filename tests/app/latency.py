"""How long the playground takes from a stroke to the refined picture, in a real browser.

A photo of 375 x 500 pixels with three labels; from the pointer's last event to the frame that shows
the result. `python -m tests.app.latency`, with Chromium, Playwright and the extra `app`.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

from crfield.app import RunningApp
from crfield.datasets import load_sample
from tests.app.app_page import (
    ARGUMENTS,
    CHROMIUM,
    DONE,
    open_page,
    paint,
    refined_after,
    until,
    upload,
)

SIZE = (500, 375)  # width, height
FIRST = (((0.1, 0.1), (0.8, 0.05)), ((0.45, 0.45), (0.6, 0.5)), ((0.2, 0.9), (0.8, 0.95)))


def measure(page, photo: Path, n_strokes: int) -> tuple[list[float], list[float]]:
    """Milliseconds from each stroke to its picture, and those that the server took of it."""
    upload(page, photo)
    page.click("#add-label")
    for label, places in enumerate(FIRST):
        paint(page, label, *places)
    until(page, DONE)
    rng = np.random.default_rng(0)
    latencies, totals = [], []
    for _ in range(n_strokes):
        x, y = rng.uniform(0.1, 0.9, 2)
        label, end = int(rng.integers(len(FIRST))), (min(0.95, x + 0.05), y)
        page.evaluate("crfield.lastLatency = undefined")
        refined_after(page, partial(paint, page, label, (x, y), end))
        until(page, "crfield.lastLatency !== undefined")
        latencies.append(page.evaluate("crfield.lastLatency"))
        totals.append(page.evaluate("crfield.state.result.milliseconds.total"))
    return latencies, totals


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strokes", type=int, default=25, help="(default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RunningApp() as app, sync_playwright() as driver:
        photo = Path(folder) / "photo.png"
        Image.fromarray(load_sample("coffee").image).resize(SIZE).save(photo)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        latencies, totals = measure(open_page(browser, app.url), photo, options.strokes)
        browser.close()
    print(
        f"{len(latencies)} strokes on {SIZE[1]} x {SIZE[0]} pixels, {len(FIRST)} labels: median "
        f"{np.median(latencies):.0f} ms to the picture ({min(latencies):.0f} to "
        f"{max(latencies):.0f}), of which the server takes {np.median(totals):.0f}"
    )


if __name__ == "__main__":
    main()
