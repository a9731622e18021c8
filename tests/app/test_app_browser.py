"""The playground's page in a real browser: painting, refining, saving, keys, what goes wrong."""

from dataclasses import replace

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
    checked_page,
    mask_of_script,
    needs_browser,
    open_sample,
    paint,
    paint_two_labels,
    plane,
    read_pixels,
    refined_after,
    save_as,
    tab_to,
    until,
    upload,
)
from crfield.app import Limits, RunningApp
from crfield.datasets import load_sample

pytestmark = [needs_browser, pytest.mark.slow]
SAMPLE = "crfield.state.image.source.sample"
MODEL = crfield.DenseCRF(2, [crfield.Pairwise(crfield.Spatial(2.0), crfield.Potts(1.5))])


@pytest.fixture
def photo(tmp_path):
    """A picture of 375 x 500 pixels."""
    path = tmp_path / "photo.png"
    Image.fromarray(load_sample("coffee").image).resize((500, 375)).save(path)
    return path


def check_before(page, image, n_labels):
    """The costs from the scribbles on the page, whose best labels it shows as before."""
    unary = crfield.unary_from_scribbles(image, plane(page, "scribbles"), n_labels)
    np.testing.assert_array_equal(plane(page, "before"), unary.argmin(-1))
    return unary


def kernels(settings):
    """The page's widths and weights as `refine` takes them."""
    bilateral = settings["bilateral_xy"], settings["bilateral_rgb"]
    names = "spatial", "spatial_weight", "bilateral_weight"
    return {"bilateral": bilateral, **{name: settings[name] for name in names}}


def test_three_painted_labels_give_the_mask_of_the_saved_script(
    page, photo, tmp_path, monkeypatch, record_property
):
    expect(page.locator("#welcome")).to_contain_text("Open an image")
    upload(page, photo)
    expect(page.locator("#hint")).to_contain_text("two or more labels")
    page.click("#add-label")
    paint(page, 0, (0.1, 0.1), (0.8, 0.05))
    expect(page.locator("#hint")).to_contain_text("another label")
    paint(page, 1, (0.45, 0.45), (0.6, 0.5))
    paint(page, 2, (0.2, 0.9), (0.8, 0.95))
    until(page, f"{DONE} && crfield.lastLatency")
    expect(page.locator("#hint")).to_be_hidden()
    latency = page.evaluate("crfield.lastLatency")
    expect(page.locator("#latency")).to_contain_text("stroke to picture")
    print(f"\npointer event to drawn overlay, 375 x 500, 3 labels: {latency:.0f} ms")
    record_property("latency_ms", latency)

    assert save_as(page, "#save-mask", tmp_path / "page.png") == "mask.png"
    save_as(page, "#save-overlay", tmp_path / "overlay.png")
    mask = read_pixels(tmp_path / "page.png")
    np.testing.assert_array_equal(mask_of_script(page, monkeypatch, tmp_path), mask)
    scribbles = read_pixels(tmp_path / "scribbles.png")
    np.testing.assert_array_equal(scribbles, plane(page, "scribbles"))
    np.testing.assert_array_equal(mask, plane(page, "after"))
    assert set(np.unique(mask)) == {0, 1, 2}
    assert read_pixels(tmp_path / "overlay.png").shape == (375, 500, 3)

    settings = page.evaluate("crfield.state.settings")
    image = read_pixels(photo)
    unary = check_before(page, image, 3)
    model = crfield.refinement.potts_model(3, **kernels(settings))
    result = model.infer(image, unary, max_iter=settings["max_iter"], tol=settings["tol"])
    np.testing.assert_array_equal(result.labels, mask)
    assert page.evaluate("crfield.state.result.n_iter") == result.n_iter


def test_a_label_map_gives_what_refine_gives_and_strokes_correct_it(page, tmp_path):
    sample = load_sample("coffee")
    shifted = np.roll(sample.mask, 6, axis=1)
    np.save(tmp_path / "coarse.npy", shifted)
    open_sample(page)
    page.click("#clear")
    until(page, "!crfield.state.planes")

    refined_after(page, lambda: page.set_input_files("#initial-file", tmp_path / "coarse.npy"))
    expect(page.locator("#source-note")).to_contain_text("coarse.npy")
    settings = page.evaluate("crfield.state.settings")
    result = crfield.refine(
        sample.image, shifted, confidence=settings["confidence"], max_iter=settings["max_iter"],
        tol=settings["tol"], **kernels(settings),
    )
    np.testing.assert_array_equal(plane(page, "after"), result.labels)
    refined_after(page, lambda: paint(page, 1, (0.02, 0.02), (0.2, 0.02)))
    painted = plane(page, "scribbles") == 1
    assert (plane(page, "after")[painted] == 1).mean() > 0.9
    page.click("#clear-initial")
    expect(page.locator("#hint")).to_contain_text("another label")


def test_undo_and_redo_restore_scribbles_and_result(page):
    open_sample(page)
    first, scribbles = plane(page, "after"), plane(page, "scribbles")
    refined_after(page, lambda: paint(page, 0, (0.3, 0.4), (0.7, 0.5)))
    changed = plane(page, "scribbles")
    assert (changed != scribbles).any()
    refined_after(page, lambda: page.keyboard.press("Control+z"))
    np.testing.assert_array_equal(plane(page, "scribbles"), scribbles)
    np.testing.assert_array_equal(plane(page, "after"), first)
    refined_after(page, lambda: page.keyboard.press("Control+Shift+z"))
    np.testing.assert_array_equal(plane(page, "scribbles"), changed)
    page.click("#clear")
    until(page, "!crfield.state.planes")
    expect(page.locator("#save-mask")).to_be_disabled()
    refined_after(page, lambda: page.click("#undo"))
    np.testing.assert_array_equal(plane(page, "scribbles"), changed)


def test_removing_a_label_takes_its_scribbles_and_undo_brings_them_back(page):
    open_sample(page)
    page.keyboard.press("n")
    count = page.locator("#labels .label").count()
    refined_after(page, lambda: paint(page, 2, (0.05, 0.05), (0.2, 0.1)))
    before = plane(page, "scribbles")
    refined_after(page, lambda: page.locator("#labels button").nth(0).click())
    after = plane(page, "scribbles")
    np.testing.assert_array_equal(after == 1, before == 2)
    np.testing.assert_array_equal(after == 255, (before == 255) | (before == 0))
    expect(page.locator("#labels .label")).to_have_count(count - 1)
    refined_after(page, lambda: page.keyboard.press("Control+z"))
    np.testing.assert_array_equal(plane(page, "scribbles"), before)
    expect(page.locator("#labels .label")).to_have_count(count)


def test_sliders_change_the_result(page):
    open_sample(page)
    energies = page.evaluate("crfield.state.result.free_energies")
    slider = page.locator("#set-bilateral_weight")
    slider.focus()
    refined_after(page, lambda: slider.press("ArrowRight"))
    assert page.evaluate("crfield.state.settings.bilateral_weight") > 6
    assert page.evaluate("crfield.state.result.free_energies") != energies
    refined_after(page, lambda: change_number(page, "max_iter", 3))
    assert page.evaluate("crfield.state.result.n_iter") == 3
    expect(page.locator("#energy circle")).to_have_count(4)
    refined_after(page, lambda: page.select_option("#set-algorithm", "cccp"))
    refined_after(page, lambda: page.click("#set-spatial_on"))
    refined_after(page, lambda: page.click("#defaults"))
    assert page.evaluate("crfield.state.result.free_energies") == energies


def test_everything_from_opening_to_saving_works_with_the_keyboard_alone(page, tmp_path):
    tab_to(page, "samples")
    page.keyboard.press("ArrowDown")
    until(page, DONE)
    tab_to(page, "clear")
    page.keyboard.press("Enter")
    until(page, "!crfield.state.planes")
    tab_to(page, "pad")
    expect(page.locator("#crosshair")).not_to_have_attribute("hidden", "")
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("2")
    page.keyboard.down("Enter")
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.up("Enter")
    until(page, DONE)
    scribbles = plane(page, "scribbles")
    assert scribbles[scribbles.shape[0] // 2, scribbles.shape[1] // 2] == 0
    across = np.flatnonzero((scribbles == 1).any(0))
    assert len(across) > page.evaluate("crfield.state.brush") + 5
    tab_to(page, "save-mask")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    download.value.save_as(tmp_path / "mask.png")
    np.testing.assert_array_equal(read_pixels(tmp_path / "mask.png"), plane(page, "after"))


def test_a_damaged_file_is_refused_with_a_sentence_and_the_page_goes_on(page, tmp_path, photo):
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(photo.read_bytes()[:2000])
    page.set_input_files("#image-file", damaged)
    toast = page.locator(".toast")
    expect(toast).to_have_count(1)
    assert str(tmp_path) not in toast.inner_text()
    assert "Traceback" not in toast.inner_text()
    toast.get_by_role("button", name="Dismiss").click()
    expect(toast).to_have_count(0)
    page.set_input_files("#model-file", damaged)
    expect(toast).to_have_count(1)
    open_sample(page)


def test_long_work_shows_progress_and_can_be_cancelled(page, tmp_path):
    rng = np.random.default_rng(0)
    noise = np.asarray(Image.fromarray(load_sample("coffee").image).resize((900, 700)), np.int16)
    noise = (noise + rng.integers(-40, 41, noise.shape)).clip(0, 255).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    upload(page, tmp_path / "large.png")
    change_number(page, "max_iter", 500)
    change_number(page, "tol", 1e-6)
    paint_two_labels(page)
    expect(page.locator("#progress-text")).to_contain_text("of 500", timeout=30000)
    page.click("#cancel")
    until(page, "!crfield.state.busy")
    expect(page.locator("#status")).to_contain_text("Cancelled")
    expect(page.locator("#work")).to_be_hidden()
    change_number(page, "max_iter", 2)
    until(page, DONE)
    assert page.evaluate("crfield.state.result.n_iter") == 2


def test_before_and_after_with_the_keyboard(page):
    open_sample(page)
    page.keyboard.press("c")
    divider = page.get_by_role("slider", name="Before and after")
    expect(divider).to_have_attribute("aria-valuenow", "50")
    divider.focus()
    divider.press("Shift+ArrowRight")
    expect(divider).to_have_attribute("aria-valuenow", "60")
    clip = "getComputedStyle(document.getElementById('after')).clipPath"
    assert "60%" in page.evaluate(clip)
    divider.press("Home")
    expect(divider).to_have_attribute("aria-valuenow", "0")
    page.keyboard.press("c")
    expect(divider).to_be_hidden()
    page.keyboard.down("Space")
    expect(page.locator("#peek-note")).to_be_visible()
    page.keyboard.up("Space")
    expect(page.locator("#peek-note")).to_be_hidden()


def test_views_draw_what_the_planes_say(page):
    open_sample(page)
    pixel = (
        "(i) => { const drawn = document.getElementById('after'); const x = i % drawn.width;"
        " const context = new OffscreenCanvas(1, 1).getContext('2d');"
        " context.drawImage(drawn, -x, (x - i) / drawn.width);"
        " return [...context.getImageData(0, 0, 1, 1).data]; }"
    )
    index = int(np.argmax(plane(page, "after").ravel() == 1))
    page.check("input[value=labels]", force=True)
    assert page.evaluate(pixel, index) == [*page.evaluate("crfield.state.server.palette[1]"), 255]
    page.check("input[value=entropy]", force=True)
    expect(page.locator("#legend")).to_be_visible()
    assert page.evaluate(pixel, index)[3] == 255
    page.check("input[value=image]", force=True)
    expect(page.locator("#after")).to_be_hidden()


def test_a_model_replaces_the_kernels(page, tmp_path):
    path = tmp_path / "learned.safetensors"
    MODEL.save(path)
    open_sample(page)
    refined_after(page, lambda: page.set_input_files("#model-file", path))
    expect(page.locator("#kernels-note")).to_be_visible()
    expect(page.locator("#set-spatial")).to_be_disabled()
    expect(page.locator("#model-terms li")).to_have_count(1)
    sample = load_sample("coffee")
    unary = crfield.unary_from_scribbles(sample.image, plane(page, "scribbles"), 2)
    result = MODEL.infer(sample.image, unary, max_iter=6, tol=1e-3)
    np.testing.assert_array_equal(plane(page, "after"), result.labels)
    refined_after(page, lambda: page.click("#clear-model"))
    expect(page.locator("#set-spatial")).to_be_enabled()
    replace(MODEL, algorithm="cccp", max_iter=3).save(path)
    refined_after(page, lambda: page.set_input_files("#model-file", path))
    expect(page.locator("#number-max_iter")).to_have_value("3")
    result = MODEL.infer(sample.image, unary, algorithm="cccp", max_iter=3, tol=1e-3)
    np.testing.assert_array_equal(plane(page, "after"), result.labels)


def test_a_model_for_other_labels_is_refused_with_both_numbers(page, tmp_path):
    MODEL.save(tmp_path / "two.safetensors")
    np.save(tmp_path / "map.npy", load_sample("coffee").mask)
    open_sample(page)
    refined_after(page, lambda: page.set_input_files("#initial-file", tmp_path / "map.npy"))
    page.set_input_files("#model-file", tmp_path / "two.safetensors")
    expect(page.locator(".toast")).to_contain_text(
        "The model is for 2 labels, map.npy has 6: load a model for as many, or go back"
    )
    refined_after(page, lambda: page.click("#clear-initial"))
    refined_after(page, lambda: page.set_input_files("#model-file", tmp_path / "two.safetensors"))
    expect(page.locator("#labels-note")).to_contain_text("The model is for 2 labels: put it away")


def test_the_numbers_of_a_label_map_go_with_it(page, tmp_path):
    """Labels of another picture would have its names, and not its numbers, in what is saved."""
    mask = np.array([0, 6, 7, 9])[np.arange(400 * 600).reshape(400, 600) % 4]
    np.save(tmp_path / "map.npy", mask.astype(np.uint8))
    Image.fromarray(np.zeros((400, 600, 3), np.uint8)).save(tmp_path / "black.png")
    page.set_input_files("#image-file", tmp_path / "black.png")
    until(page, "crfield.state.image?.name === 'black.png'")
    refined_after(page, lambda: page.set_input_files("#initial-file", tmp_path / "map.npy"))
    assert page.evaluate("crfield.state.labels") == ["0", "6", "7", "9"]
    Image.fromarray(np.full((40, 60, 3), 9, np.uint8)).save(tmp_path / "other.png")
    page.set_input_files("#image-file", tmp_path / "other.png")
    until(page, "crfield.state.image?.name === 'other.png'")
    assert page.evaluate("crfield.state.labels") == ["background", "object"]


def test_the_theme_follows_the_system_until_chosen(app, browser):
    background = "getComputedStyle(document.body).backgroundColor"
    with checked_page(browser, app.url, color_scheme="dark") as page:
        dark = page.evaluate(background)
        page.emulate_media(color_scheme="light")
        assert page.evaluate(background) != dark
        page.click("#theme")
        assert page.evaluate(background) == dark
        page.reload()
        until(page, "window.crfield?.ready")
        assert page.evaluate(background) == dark


def test_an_image_that_the_server_forgot_is_opened_again(browser):
    with RunningApp(Limits(max_images=1)) as small, checked_page(browser, small.url) as page:
        open_sample(page)
        page.evaluate(
            "fetch('/api/samples/camera', {method: 'POST', headers: {'X-Crfield': '1'}})"
            ".then((answer) => answer.ok)"
        )
        refined_after(page, lambda: paint(page, 0, (0.1, 0.1), (0.3, 0.1)))
        expect(page.locator(".toast")).to_have_count(0)


def test_the_newest_picture_wins_while_a_refinement_is_under_way(page):
    open_sample(page)
    paint(page, 0, (0.1, 0.1), (0.3, 0.1))
    page.select_option("#samples", "camera")
    page.select_option("#samples", "astronaut")
    until(page, f"crfield.state.image.source.sample === 'astronaut' && {DONE}")
    shape = load_sample("astronaut").image.shape[:2]
    assert plane(page, "after").shape == shape
    assert page.locator("#samples").input_value() == "astronaut"
    for label in (0, 1, 0, 1):
        paint(page, label, (0.2, 0.2 + 0.1 * label), (0.8, 0.3), (0.1, 0.6))
    until(page, DONE)
    check_before(page, load_sample("astronaut").image, 2)


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
    MODEL.save(tmp_path / "two.safetensors")
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


def test_what_is_loaded_begins_with_what_refine_gives(page, photo, tmp_path):
    coarse = np.random.default_rng(0).dirichlet([1, 1], (47, 63)).astype(np.float32)
    mask = Image.fromarray(load_sample("coffee").mask).resize((500, 375), Image.Resampling.NEAREST)
    upload(page, photo)
    image = read_pixels(photo)
    for values, logits in ((coarse, False), (np.roll(mask, 6), False), (30 * coarse, True)):
        np.save(tmp_path / "values.npy", values)
        page.set_checked("#logits", logits)
        refined_after(
            page, lambda: page.set_input_files("#initial-file", tmp_path / "values.npy")
        )
        expected = crfield.refine(image, values, logits=logits)
        np.testing.assert_array_equal(plane(page, "after"), expected.labels)
        assert page.evaluate("crfield.state.result.n_iter") == expected.n_iter
    expect(page.locator("#number-spatial")).to_have_value("4.688")
    change_number(page, "max_iter", 4)
    page.click("#clear-initial")
    expect(page.locator("#clear-initial")).to_be_hidden()
    settings = page.evaluate("crfield.state.settings")
    assert (settings["bilateral_weight"], settings["max_iter"]) == (6, 4)
    refined_after(page, lambda: page.set_input_files("#initial-file", tmp_path / "values.npy"))
    settings = page.evaluate("crfield.state.settings")
    assert (settings["bilateral_weight"], settings["max_iter"]) == (3, 4)


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
    check_before(page, load_sample("coffee").image, 6)
    page.click("#clear")
    page.click("#save-mask")
    expect(page.locator(".toast")).to_contain_text("refine first")


def test_escape_cancels_from_within_a_field(page, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (500, 600, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    upload(page, tmp_path / "noise.png")
    change_number(page, "tol", 1e-6)
    paint_two_labels(page)
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
    with checked_page(browser, app.url, has_touch=True) as page:
        expect(page.locator("#swatches")).to_be_hidden()
        page.set_viewport_size({"width": 820, "height": 1180})
        open_sample(page)
        page.get_by_role("button", name="Paint saucer").click()
        assert page.evaluate("crfield.state.active") == 2
        stage, button = (
            page.locator(place).bounding_box()
            for place in ("#stage", "#swatches button:last-child")
        )
        assert button["y"] + button["height"] <= stage["y"]


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


def test_an_error_goes_with_its_cause(page, tmp_path, photo):
    np.save(tmp_path / "map.npy", np.arange(375 * 500).reshape(375, 500) % 3)
    (tmp_path / "damaged.png").write_bytes(photo.read_bytes()[:2000])
    toast = page.locator(".toast")
    page.set_input_files("#initial-file", tmp_path / "map.npy")
    expect(toast).to_contain_text("Open an image first, then its label map or probabilities.")
    page.set_input_files("#image-file", tmp_path / "damaged.png")
    expect(toast).to_contain_text("damaged")
    expect(toast).to_have_count(1)
    upload(page, photo)
    expect(toast).to_have_count(0)
    page.uncheck("#live")
    refined_after(page, lambda: page.set_input_files("#initial-file", tmp_path / "map.npy"))
    page.route("**/refine", lambda route: route.fulfill(status=500, body="{}"))
    page.click("#refine")
    expect(toast).to_contain_text("500")
    page.unroute("**/refine")
    refined_after(page, lambda: page.click("#refine"))
    expect(toast).to_have_count(0)


@pytest.mark.parametrize("size", [(320, 640), (390, 844), (920, 700), (1366, 768)])
def test_errors_leave_the_buttons_that_save_in_reach(app, browser, tmp_path, size):
    (tmp_path / "text.png").write_bytes(b"none of the formats")
    with checked_page(browser, app.url, has_touch=size[0] < 900) as page:
        page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        open_sample(page)
        page.set_input_files("#image-file", tmp_path / "text.png")
        toast = page.locator(".toast")
        expect(toast).to_have_count(1)
        page.locator("#save-snippet").scroll_into_view_if_needed()
        lowest = toast.bounding_box()["y"] + toast.bounding_box()["height"]
        bar = page.locator(".save").bounding_box()
        assert lowest <= bar["y"]
        assert bar["x"] + bar["width"] <= size[0]
        with page.expect_download():
            page.click("#save-mask", timeout=3000)


def test_a_large_picture_is_refined_once_the_brush_is_lifted(page, tmp_path):
    Image.new("RGB", (1500, 1400), "teal").save(tmp_path / "large.png")
    upload(page, tmp_path / "large.png")
    change_number(page, "max_iter", 1)
    sent = []
    page.on("request", lambda request: sent.append(request.url.endswith("/refine")))
    paint(page, 0, (0.1, 0.1), (0.8, 0.1))
    page.keyboard.press("2")
    box = page.locator("#picture").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(5):
        page.mouse.move(x + 8 * step, y)
        page.wait_for_timeout(50)
    assert sent == []
    refined_after(page, page.mouse.up)
    assert sent == [True]
    expect(page.locator("#latency")).to_contain_text("stroke to picture")
    page.locator("#pad").focus()
    refined_after(page, lambda: page.keyboard.press("Enter"))
    assert sent == [True, True]
