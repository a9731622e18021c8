"""What a notebook shows: pictures and captions that hold what they should and nothing that runs."""

import base64
import copy
import io
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import crfield
from crfield import InferenceStatus
from crfield.graphs import FactorGraph, infer
from crfield.show import notebook, pictures
from html_page import Balanced

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (30, 40, 3), dtype=np.uint8)
LABELS = np.repeat(np.repeat(RNG.integers(0, 3, (3, 4)), 10, 0), 10, 1)


def result_of(image, labels, **options):
    return crfield.refine(image, labels, spatial=2, bilateral=None, **options)


def embedded(html):
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    assert len(found) == 1
    return Image.open(io.BytesIO(base64.b64decode(found[0])))


def test_image_overlay_and_uncertainty_stand_side_by_side():
    result = result_of(IMAGE, LABELS)
    html = result._repr_html_()
    Balanced(html)
    sheet = np.asarray(embedded(html))
    assert np.array_equal(sheet, np.asarray(result.preview()))
    height = 160
    width = round(40 * height / 30)
    panels = [sheet[-height - 8:-8, 8 + k * (width + 8):][:, :width] for k in range(3)]
    expected = [
        pictures.show(IMAGE), pictures.overlay(IMAGE, result.labels),
        pictures.entropy_map(result.marginals),
    ]
    for panel, picture in zip(panels, expected, strict=True):
        large = picture.resize((width, height), Image.Resampling.NEAREST)
        assert np.array_equal(panel, np.asarray(large))


def test_the_caption_tells_how_inference_went():
    result = result_of(IMAGE, LABELS, max_iter=2, tol=0)
    html = result._repr_html_()
    assert "30x40, 3 labels, 2 iterations, free energy" in html
    start, end = (f"{energy:.6g}" for energy in result.free_energies[[0, -1]])
    assert f"{start} -&gt; {end}" in html
    assert "Ended after max_iter" in html


def test_without_an_image_labels_are_shown_in_the_colors_of_their_ids():
    result = result_of(None, LABELS * 5)
    assert result.image is None
    sheet = np.asarray(result.preview())
    colors = {tuple(c) for c in sheet.reshape(-1, 3).tolist()}
    palette = pictures.label_palette(256)
    assert all(tuple(palette[i].tolist()) in colors for i in np.unique(result.labels))


def test_volumes_show_their_middle_slice():
    volume = RNG.random((5, 12, 14))
    result = result_of(volume, RNG.integers(0, 2, (5, 12, 14)))
    middle = replace(result, marginals=result.marginals[2], image=volume[2])
    assert np.array_equal(np.asarray(result.preview()), np.asarray(middle.preview()))
    assert "slice 3 of 5" in result._repr_html_()


@pytest.mark.parametrize("shape", [(700, 1500), (3, 2000), (2000, 3), (1, 1)])
def test_pictures_stay_small(shape):
    marginals = np.zeros((*shape, 2), np.float32)
    marginals[..., 0] = 1
    image = RNG.integers(0, 256, shape, dtype=np.uint8)
    sheet = notebook.preview(marginals, np.arange(2), image)
    assert sheet is not None
    assert sheet.width <= 3 * 512 + 32
    assert sheet.height <= 512 + 60


def test_large_images_are_averaged():
    array = RNG.random((7, 9, 2))
    reduced = notebook._reduced(array, 4)
    assert reduced.shape == (2, 3, 2)
    np.testing.assert_allclose(reduced[0, 0], array[:4, :4].mean((0, 1)))
    np.testing.assert_allclose(reduced[1, 2], array[4:, 8:].mean((0, 1)))
    assert notebook._reduced(np.full((5, 5), 255, np.uint8), 2).tolist() == [[255] * 3] * 3


def test_points_have_a_caption_only():
    model = crfield.DenseCRF(2)
    result = model.infer(None, RNG.random((6, 2)))
    assert result.preview() is None
    assert "<img" not in result._repr_html_()
    Balanced(result._repr_html_())


def test_the_image_is_the_callers_and_does_not_travel():
    result = result_of(IMAGE, LABELS)
    assert result.image is IMAGE or np.shares_memory(result.image, IMAGE)
    for other in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert other.image is None
        assert np.array_equal(other.marginals, result.marginals)
        assert other.status is result.status
    assert "image" not in repr(result)


def test_texts_are_escaped():
    hostile = '<script>alert("x")</script>'
    Balanced(notebook.facts(hostile, {hostile: hostile}))
    Balanced(notebook.figure(hostile, Image.new("RGB", (2, 2))))
    kernel = crfield.FeatureKernel("<b onclick=alert(1)>", 2)
    html = crfield.DenseCRF(2, [crfield.Pairwise(kernel, crfield.Potts(1))])._repr_html_()
    assert "<b " not in html
    Balanced(html)


def test_models_show_their_terms():
    model = crfield.DenseCRF(3, [
        crfield.Pairwise(crfield.Spatial([3, 2]), crfield.Potts(4)),
        crfield.Pairwise(crfield.Bilateral(60, 8), crfield.Symmetric(1 - np.eye(3)), 0.5),
    ])
    html = model._repr_html_()
    Balanced(html)
    for text in ("3 labels", "Spatial", "sigma (3, 2)", "Potts", "weight 4", "sigma_xy 60",
                 "Symmetric", "3 x 3 numbers", "0.5"):
        assert text in html
    Balanced(crfield.DenseCRF(2)._repr_html_())


def test_graph_results_show_how_they_ended():
    graph = FactorGraph(RNG.random((3, 2)))
    html = infer(graph)._repr_html_()
    Balanced(html)
    assert "no loops" in html


def test_every_status_fits_into_a_caption():
    result = result_of(IMAGE, LABELS)
    for status in InferenceStatus:
        Balanced(replace(result, status=status)._repr_html_())
