"""The report of learning: a page that stands alone, shows the right numbers and never half."""

import base64
import dataclasses
import io
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    FeatureKernel,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
    refine,
    unary_from_labels,
)
from crfield.learning import Learned, LearningReport, write_report
from crfield.learning.results import _refined
from crfield.learning.widths import kernel_correlations, kernel_widths
from crfield.metrics import confusion_matrix, iou_per_label, mean_iou, pixel_accuracy
from crfield.show import svg as _svg
from html_page import Balanced
from refusal import refusal
from small_dataset import training_images

NAMES = ["sky & <sea>", "grass", "a class with quite a long name"]


def full_model(n_labels, scale=1.0):
    """Every kind of kernel and compatibility; `scale` makes another state of the same model."""
    rng = np.random.default_rng(0)
    mixed = np.diag([900.0, 1600.0, 100.0, 144.0, 64.0])
    mixed[0, 2] = mixed[2, 0] = 100.0
    return DenseCRF(
        n_labels,
        [
            Pairwise(Spatial(3.0 * scale), Potts(2.5 * scale), weight=2.0),
            Pairwise(Bilateral([40.0, 60.0], [8.0 * scale, 9.0, 10.0]),
                     Symmetric(4.0 * scale * (1 - np.eye(n_labels)))),
            Pairwise(Bilateral(covariance=scale * mixed), Diagonal(scale * rng.random(n_labels))),
            Pairwise(FeatureKernel("depth", 2, sigma=[0.5, 2.0]), Potts(1.0)),
        ],
        np.concatenate([np.eye(n_labels), np.full((n_labels, 1), 0.1 * scale)], axis=1),
    )


def learned(n_labels=3, **changes):
    rng = np.random.default_rng(1)
    confusions = [rng.integers(0, 40, (n_labels, n_labels)) for _ in range(4)]
    report = LearningReport(
        losses=[0.5, 0.4, 0.35, 0.36], mean_ious=[0.51234, 0.6, 0.65, 0.64],
        gradient_norms=[1.0, 0.3, 0.04, 0.01], validation_ious=[0.5, 0.55, 0.58, 0.57],
        confusions=confusions, validation_confusions=confusions[::-1], n_evaluations=9,
        best_iteration=2, start_model=full_model(n_labels),
        settings={
            "learn": ["compatibility", "kernel"], "l2": {"off_diagonal": 0.025}, "project": True,
        },
    )
    return Learned(full_model(n_labels, 1.25), dataclasses.replace(report, **changes))


def written(path, *arguments, **options):
    """The report's text, checked to be a whole page that loads nothing."""
    write_report(path, *arguments, **options)
    text = Path(path).read_text("utf-8")
    links = Balanced(text, void=("meta", "img")).links
    assert all(re.match("data:image/(png|jpeg);base64,", link) for link in links)
    assert "url(" not in text
    assert "@import" not in text
    return text


def heat_maps(text):
    """The pictures of matrices, a pixel a cell, on white."""
    found = re.findall(r"base64,([^\"]+)", text)
    images = [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]
    white = [Image.new("RGBA", image.size, "white") for image in images]
    shown = [
        np.asarray(Image.alpha_composite(*pair).convert("RGB"))
        for pair in zip(white, images, strict=True)
    ]
    return [image for image in shown if image.shape[0] > 1]


def cells(text):
    """The rows of all tables."""
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]


def test_the_page_shows_what_was_learned(tmp_path):
    text = written(
        tmp_path / "report.html", learned(), class_names=NAMES, title="a & b",
        settings={"data": "photos"},
    )
    assert "<title>a &amp; b</title>" in text
    assert "sky &amp; &lt;sea&gt;" in text
    assert "<sea>" not in text
    for words in ("0.5000 → 0.3500", "51.23 % → 65.00 %", "50.00 % → 58.00 %", "2 of 3"):
        assert words in text
    assert "Training images" in text
    assert "Validation images" in text
    rows = cells(text)
    assert ["Term 1: Spatial kernel, Potts compatibility",
            "width in distance, every direction (pixels)", "3", "3.75"] in rows
    assert ["", "cost of different labels", "2.5", "3.125"] in rows
    assert ["", "width in color, red (gray levels of 255)", "8", "10"] in rows
    assert ["data", "photos"] in rows
    assert ["learned", "compatibility, kernel"] in rows
    assert ["ridge towards the start", "off diagonal 0.025"] in rows
    assert ["kept within the convergence guarantee", "yes"] in rows
    assert ["evaluations", "9"] in rows
    assert "sky &amp; &lt;sea&gt; and grass: 4 → 5" in text


def test_results_of_classifier_default_and_model_side_by_side(tmp_path):
    """Of eight scenes six are shown; each share of pixels and each IoU is that of `metrics`."""
    scenes = training_images(8, size=(40, 60))
    for scene in scenes:
        scene.truth[:4, :4] = 255
    truths = [scene.truth for scene in scenes]
    model = DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0))])
    found = {
        "classifier": [s.unary.argmin(-1) for s in scenes],
        "default refine": [refine(s.image, np.exp(-s.unary)).labels for s in scenes],
        "learned": [model.infer(s.image, s.unary, tol=0.0).labels for s in scenes],
    }
    totals = {
        kind: sum(confusion_matrix(*pair, 3) for pair in zip(truths, maps, strict=True))
        for kind, maps in found.items()
    }
    run = Learned(model, LearningReport())
    text = written(
        tmp_path / "report.html", run, class_names=["wall", "2", "x"], examples=scenes,
        examples_are="held-out images",
    )
    assert "Scores on the 8 held-out images, at full size" in text
    for kind, counts in totals.items():
        tile = f"mean IoU, {kind}<b>{100 * mean_iou(counts):.2f} %</b>"
        assert tile in text
    ious = [iou_per_label(counts) for counts in totals.values()]
    for label, name in enumerate(("wall", "label 2", "x")):
        assert f">{name}<" in text
        assert " → ".join(f"{100 * iou[label]:.1f}" for iou in ious) in text
    assert text.count("<figcaption>truth") == text.count("data:image/jpeg") == 6
    shares = re.findall(r"learned: ([\d.]+) % of pixels</fig", text)
    chosen = [0, 1, 3, 4, 6, 7]
    assert shares == [
        f"{100 * pixel_accuracy(confusion_matrix(scenes[k].truth, found['learned'][k], 3)):.2f}"
        for k in chosen
    ]
    assert len(text) < 400_000
    drawn = re.findall(r'alt="image: truth"[^>]*base64,([^"]+)', text)
    truth = Image.open(io.BytesIO(base64.b64decode(drawn[0])))
    assert max(truth.size) == 256
    assert truth.getpixel((0, 0)) == (224, 224, 224), "void"


def test_the_legend_names_labels_that_only_the_truth_has(tmp_path):
    scene = training_images(1, size=(40, 60))[0]
    scene = scene._replace(unary=unary_from_labels((scene.truth == 1).astype(int), 3))
    text = written(
        tmp_path / "report.html", Learned(DenseCRF(3), LearningReport()),
        class_names=["wall", "floor", "lamp"], examples=[scene],
    )
    assert "lamp" in text.partition("Before and after")[2]


def test_default_refinement_of_labels_is_that_of_labels():
    scene = training_images(1, size=(40, 60))[0]
    labels = np.where(scene.truth == 2, 255, scene.truth)
    scene = scene._replace(unary=unary_from_labels(labels, 3))
    np.testing.assert_array_equal(_refined(scene), refine(scene.image, labels).labels)
    flat = np.where(scene.truth == 1, 1, 255)
    scene = scene._replace(unary=unary_from_labels(flat, 3))
    np.testing.assert_array_equal(_refined(scene), flat == 1)


def test_the_page_is_dark_where_the_browser_is(tmp_path):
    text = written(tmp_path / "report.html", learned())
    assert "@media (prefers-color-scheme: dark)" in text
    for attribute, color in (("fill", _svg.INK), ("stroke", _svg.GRID_LINE)):
        assert f'{attribute}="{color}"' in text.split("</style>")[1]
        assert f'svg [{attribute}="{color}"] {{ {attribute}: #' in text


def test_heat_maps_are_the_matrices(tmp_path):
    run = learned()
    confusion = run.report.confusions[2]
    share = confusion / confusion.sum(axis=1, keepdims=True)
    maps = heat_maps(written(tmp_path / "report.html", run))
    # Two confusions, then start, learned and change of Symmetric, Diagonal and its kernel's
    # correlations, which stayed as they were, and of the recalibration.
    assert [m.shape[:2] for m in maps] == [(3, 3)] * 8 + [(5, 5)] + [(3, 4)] * 3
    darkness = 255 - maps[0].astype(float).mean(axis=2)
    assert np.allclose(darkness / darkness.max(), share / share.max(), atol=0.02)
    start, now, change = (m.astype(int) for m in maps[2:5])
    assert (start[0, 0] == 255).all()
    assert (now[0, 1] == change[0, 1]).all(), "both at the end of their scale"
    assert now[0, 1, 1] < start[0, 1, 1] < 255, "4 is paler than 5"
    assert (start[0, 1, 0] > start[0, 1, 2]), "costs are red"
    gain = maps[6][0, 0].astype(int)
    assert gain[2] > gain[0], "gains are blue"


@pytest.mark.parametrize("n_labels", [1, 2, 21, 60])
def test_any_number_of_labels(n_labels, tmp_path):
    text = written(
        tmp_path / "report.html", learned(n_labels),
        class_names=[f"class {label}" for label in range(n_labels)],
    )
    assert len(text) < 500_000
    assert text.count(f"class {n_labels - 1}") > 10


@pytest.mark.parametrize(("n", "written_in_cells"), [(3, True), (10, True), (11, False)])
def test_numbers_are_written_where_there_is_room(n, written_in_cells):
    names = [f"class {label}" for label in range(n)]
    chart = ET.fromstring(_svg.heat_map(0.5 * np.eye(n), names, names, limit=1.0))
    texts = [element.text for element in chart.iter("text")]
    assert texts.count("0.50") == (n if written_in_cells else 0)
    assert texts[: 2 * n] == names + names
    assert texts.count("0") == 1 + (n * (n - 1) if written_in_cells else 0)
    assert texts[-3:] == ["-1.00", "1.00", "0"]


@pytest.mark.parametrize("grid_dim", [1, 3])
def test_other_grids_have_no_ellipse(grid_dim, tmp_path):
    run = learned()
    assert "<polygon" in written(tmp_path / "flat.html", run)
    text = written(tmp_path / "report.html", run, grid_dim=grid_dim)
    assert "<polygon" not in text
    assert "grid steps" in text


def test_a_report_of_little(tmp_path):
    """Searches know no losses and an unlearned estimator nothing at all."""
    text = written(tmp_path / "none.html", Learned(DenseCRF(3), LearningReport()))
    assert "Course of learning" not in text
    assert "Parameters" not in text
    run = learned(losses=[], gradient_norms=[], confusions=[], start_model=None)
    text = written(tmp_path / "little.html", run)
    assert "Training images" not in text
    assert "<figcaption>loss" not in text
    assert ["", "cost of different labels", "–", "3.125"] in cells(text)


def test_labels_and_splits_without_pixels(tmp_path):
    nothing = np.zeros((3, 3), np.int64)
    run = learned(
        validation_ious=[np.nan] * 4, validation_confusions=[nothing] * 4,
        confusions=[np.diag([5, 0, 0])] * 4,
    )
    text = written(tmp_path / "report.html", run)
    assert "nan" not in text
    assert "Mean IoU – at the start" in text


@pytest.mark.parametrize("kernel", [
    Spatial([[9.0, 3.0], [3.0, 4.0]]),
    Bilateral([4.0, 5.0], [[100.0, 20.0, 0.0], [20.0, 150.0, 5.0], [0.0, 5.0, 80.0]]),
    full_model(2).terms[2].kernel,
    FeatureKernel("f", 2, covariance=[[2.0, 0.5], [0.5, 1.0]]),
])
def test_a_width_is_where_the_kernel_falls_to_61_percent(kernel):
    """Moving by the width in one feature alone gives |f - g| = 1 in scaled features."""
    values = np.concatenate([group.values for group in kernel_widths(kernel)])
    covariances = [
        np.atleast_2d(np.diag(np.square(w)) if np.ndim(w) == 1 else w)
        for w in (getattr(kernel, name) for name in kernel.array_fields) if w is not None
    ]
    size = sum(len(c) for c in covariances)
    assert len(values) == size
    joint, begin = np.zeros((size, size)), 0
    for c in covariances:
        joint[begin : begin + len(c), begin : begin + len(c)] = c
        begin += len(c)
    for d, width in enumerate(values):
        step = np.zeros(size)
        step[d] = width
        assert np.exp(-step @ np.linalg.solve(joint, step) / 2) == pytest.approx(np.exp(-0.5))


def test_names_of_widths():
    assert [g.names for g in kernel_widths(Bilateral(3, 4))] == [
        ("every direction",), ("every channel",)]
    groups = kernel_widths(Bilateral([1, 2, 3], [4, 5], color_scale=0.5), 3)
    assert groups[0].names == ("deep", "down", "across")
    assert groups[1].names == ("channel 1", "channel 2")
    assert [g.unit for g in groups] == ["grid steps", "image values times 0.5"]
    lab = kernel_widths(Bilateral(1, [2, 3, 4], color_space="lab"))[1]
    assert (lab.names[0], lab.unit) == ("lightness", "Lab units")
    (names, correlation), = kernel_correlations(full_model(2).terms[2].kernel)
    assert names == ("down", "across", "red", "green", "blue")
    assert correlation[0, 2] == pytest.approx(100 / np.sqrt(900 * 100))


NUMBERS = st.floats() | st.floats(-1, 1) | st.sampled_from([-1.7e308, 1.7e308, 1e-320])


@given(st.lists(st.lists(NUMBERS, max_size=50), min_size=1, max_size=2), st.integers(0, 49))
def test_curves_stay_on_their_paper(rows, mark):
    curves = [_svg.Curve(f"<{k}>", values) for k, values in enumerate(rows)]
    chart = ET.fromstring(_svg.line_chart(curves, mark=min(mark, len(rows[0]))))
    width, height = float(chart.get("width")), float(chart.get("height"))
    drawn = [line.get("points").split() for line in chart.iter("polyline")]
    assert [len(points) for points in drawn] == [sum(abs(v) < 1e100 for v in r) for r in rows]
    for x, y in (map(float, point.split(",")) for points in drawn for point in points):
        assert 0 <= x <= width
        assert 0 <= y <= height


@given(st.lists(st.tuples(st.text(max_size=40), NUMBERS, NUMBERS), min_size=1, max_size=6))
def test_bars_stay_on_their_paper(rows):
    names, before, after = zip(*rows, strict=True)
    printable = ["".join(c for c in name if c.isprintable()) for name in names]
    series = [_svg.Curve("before", before), _svg.Curve("after", after)]
    chart = ET.fromstring(f"<p>{_svg.bars(printable, series)}</p>")[1]
    width = float(chart.get("width"))
    bars = list(chart.iter("rect"))
    assert len(bars) == 2 * len(rows)
    for bar in bars:
        assert 0 <= float(bar.get("width")) <= width


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failing_write_leaves_the_old_report_and_no_other(step, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    where = {"write": (Path, "write_text"), "fsync": (os, "fsync"), "replace": (Path, "replace")}
    with monkeypatch.context() as patch:
        patch.setattr(*where[step], fail)
        message = refusal(write_report, path, learned())
    assert message == f"cannot write {path}: no space left on device; make room there."
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_wrong_requests_are_refused(tmp_path):
    path = tmp_path / "report.html"
    for names in (["one"], "abc", []):
        assert "class_names must be 3 names" in refusal(
            write_report, path, learned(), class_names=names
        )
    assert "path must be a file name" in refusal(write_report, None, learned())
    assert "grid_dim" in refusal(write_report, path, learned(), grid_dim=0)
    assert "cannot write" in refusal(write_report, tmp_path / "missing" / "x.html", learned())
    assert os.listdir(tmp_path) == []
