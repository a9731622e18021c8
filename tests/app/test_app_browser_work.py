"""The playground's page in a real browser: work is not lost, and keys do what they say."""

from __future__ import annotations

import runpy

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the playground needs starlette")
pytest.importorskip("uvicorn", reason="the playground needs uvicorn")
pytest.importorskip("playwright", reason="driving a browser needs playwright")

from playwright.sync_api import expect

import crfield
from app_page import (
    DONE,
    change_number,
    needs_browser,
    open_page,
    open_sample,
    paint,
    plane,
    read_pixels,
    refined_after,
    save_as,
    until,
    upload,
)
from crfield.datasets import load_sample

pytestmark = needs_browser
SAMPLE = "crfield.state.image.source.sample"


def test_keys_after_a_click_do_not_go_to_what_was_clicked(page):
    open_sample(page, "astronaut")
    page.click("#samples")
    page.select_option("#samples", "coffee")
    until(page, f"{SAMPLE} === 'coffee' && {DONE}")
    page.keyboard.press("c")
    assert page.evaluate("crfield.state.comparing")
    assert page.evaluate(SAMPLE) == "coffee"
    page.keyboard.press("c")
    before = plane(page, "scribbles")
    page.click("#zoom-in")
    box = page.locator("#stage").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.keyboard.down("Space")
    place = page.locator("#sheet").bounding_box()
    page.mouse.down()
    page.mouse.move(x + 40, y + 20, steps=4)
    page.mouse.up()
    page.keyboard.up("Space")
    moved = page.locator("#sheet").bounding_box()
    assert moved["x"] == pytest.approx(place["x"] + 40, abs=1)
    np.testing.assert_array_equal(plane(page, "scribbles"), before)


def test_labels_and_scribbles_come_back_when_a_smaller_model_is_put_away(page, tmp_path):
    model = crfield.DenseCRF(2, [crfield.Pairwise(crfield.Spatial(2.0), crfield.Potts(1.5))])
    model.save(tmp_path / "two.safetensors")
    open_sample(page)
    scribbles = plane(page, "scribbles")
    names = page.evaluate("crfield.state.labels")
    assert len(names) == 6
    refined_after(page, lambda: page.set_input_files("#model-file", tmp_path / "two.safetensors"))
    expect(page.locator(".toast")).to_contain_text("comes back")
    expect(page.locator("#labels .label")).to_have_count(2)
    assert set(np.unique(plane(page, "scribbles"))) == {0, 1, 255}
    refined_after(page, lambda: page.click("#clear-model"))
    assert page.evaluate("crfield.state.labels") == names
    np.testing.assert_array_equal(plane(page, "scribbles"), scribbles)
    page.keyboard.press("Escape")
    expect(page.locator(".toast")).to_have_count(0)


def test_labels_of_a_map_go_with_it_unless_they_were_painted(page, tmp_path):
    labels = np.arange(40 * 50).reshape(40, 50) % 5
    Image.fromarray(labels.astype(np.uint8)).resize((50, 40)).save(tmp_path / "photo.png")
    np.save(tmp_path / "map.npy", labels)
    upload(page, tmp_path / "photo.png")
    for last in (2, 4):
        refined_after(page, lambda: page.set_input_files("#initial-file", tmp_path / "map.npy"))
        expect(page.locator("#labels .label")).to_have_count(5)
        if last == 4:
            refined_after(page, lambda: paint(page, 3, (0.1, 0.1), (0.3, 0.1)))
        page.click("#clear-initial")
        expect(page.locator("#labels .label")).to_have_count(last)


@pytest.mark.parametrize("share", [0.5, np.nan])
def test_probabilities_that_are_none_leave_everything_as_it_was(page, tmp_path, share):
    open_sample(page)
    first = plane(page, "after")
    np.save(tmp_path / "bad.npy", np.full((*first.shape, 3), share, np.float32))
    page.set_input_files("#initial-file", tmp_path / "bad.npy")
    expect(page.locator(".toast")).to_have_count(1)
    expect(page.locator("#source-note")).to_contain_text("Starts from the scribbles")
    np.testing.assert_array_equal(plane(page, "after"), first)
    refined_after(page, lambda: paint(page, 0, (0.1, 0.9), (0.2, 0.9)))


def test_what_is_saved_is_what_is_painted_also_without_live_refinement(page, tmp_path):
    open_sample(page)
    page.uncheck("#live")
    drawn = page.evaluate("crfield.state.drawn")
    paint(page, 0, (0.3, 0.4), (0.7, 0.5))
    assert page.evaluate("crfield.state.drawn") == drawn
    save_as(page, "#save-scribbles", tmp_path / "scribbles.png")
    scribbles = plane(page, "scribbles")
    np.testing.assert_array_equal(read_pixels(tmp_path / "scribbles.png"), scribbles)
    save_as(page, "#save-mask", tmp_path / "mask.png")
    sample = load_sample("coffee")
    unary = crfield.unary_from_scribbles(sample.image, scribbles, 6)
    np.testing.assert_array_equal(plane(page, "before"), unary.argmin(-1))
    page.click("#clear")
    page.click("#save-mask")
    expect(page.locator(".toast")).to_contain_text("refine first")


def test_escape_cancels_from_within_a_field(page, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (500, 600, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    upload(page, tmp_path / "noise.png")
    change_number(page, "tol", 1e-6)
    paint(page, 0, (0.1, 0.1), (0.8, 0.05))
    paint(page, 1, (0.45, 0.45), (0.6, 0.5))
    field = page.locator("#number-max_iter")
    field.fill("500")
    field.press("Enter")
    until(page, "crfield.state.busy")
    field.press("Escape")
    until(page, "!crfield.state.busy")
    expect(page.locator("#status")).to_contain_text("Cancelled")


def test_numbers_of_a_closed_section_are_those_of_the_last_result(page):
    open_sample(page)
    page.click("#result-section summary")
    refined_after(page, lambda: change_number(page, "max_iter", 2))
    page.click("#result-section summary")
    expect(page.locator("#energy circle")).to_have_count(3)


def test_labels_can_be_chosen_above_the_picture_on_a_tablet(app, browser):
    page = open_page(browser, app.url, has_touch=True)
    expect(page.locator("#swatches")).to_be_hidden()
    page.set_viewport_size({"width": 820, "height": 1180})
    open_sample(page)
    page.get_by_role("button", name="Paint saucer").click()
    assert page.evaluate("crfield.state.active") == 2
    picture, button = (
        page.locator(place).bounding_box() for place in ("#stage", "#swatches button:last-child")
    )
    assert button["y"] + button["height"] <= picture["y"]
    page.context.close()
    assert page.faults == []


def test_leaving_with_painted_work_asks_first(page):
    open_sample(page)
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    page.reload()
    until(page, "window.crfield?.ready")
    assert asked == []
    open_sample(page)
    refined_after(page, lambda: paint(page, 0, (0.3, 0.4), (0.7, 0.5)))
    page.reload()
    until(page, "window.crfield?.ready")
    assert asked == ["beforeunload"]


def test_the_script_reads_the_first_of_several_pages(page, tmp_path, monkeypatch):
    sample = load_sample("coffee").image
    pages = [Image.fromarray(sample), Image.fromarray(255 - sample)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    upload(page, tmp_path / "pages.tif")
    paint(page, 0, (0.1, 0.1), (0.8, 0.05))
    paint(page, 1, (0.45, 0.45), (0.6, 0.5))
    until(page, DONE)
    save_as(page, "#save-mask", tmp_path / "page.png")
    save_as(page, "#save-scribbles", tmp_path / "scribbles.png")
    page.click("#save-snippet")
    expect(page.locator("#snippet")).to_contain_text("import crfield")
    (tmp_path / "script.py").write_text(page.locator("#snippet").text_content())
    monkeypatch.chdir(tmp_path)
    runpy.run_path("script.py")
    np.testing.assert_array_equal(read_pixels("mask.png"), read_pixels("page.png"))
