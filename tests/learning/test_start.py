"""The model that learning starts from."""

import numpy as np
import pytest

from crfield import Diagonal, Potts, Symmetric
from crfield.estimators import TrainingImage
from crfield.learning import make_loss, starting_model
from refusal import refusal
from small_dataset import training_images


@pytest.mark.parametrize(("family", "kind"), [
    ("potts", Potts), ("diagonal", Diagonal), ("symmetric", Symmetric),
])
def test_families_are_the_same_model(family, kind):
    examples = training_images(2, (20, 24))
    model = starting_model(3, examples, make_loss("iou", examples, 3), family=family)
    potts = starting_model(3, examples, make_loss("iou", examples, 3), family="potts")
    assert isinstance(model.terms[-1].compatibility, kind)
    first, second = (m.infer(examples[0].image, examples[0].unary) for m in (model, potts))
    np.testing.assert_allclose(first.marginals, second.marginals, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["iou", "log_likelihood"])
def test_the_start_is_better_than_its_input(loss):
    examples = training_images(6, (96, 128))
    chosen = make_loss(loss, examples, 3)
    model = starting_model(3, examples, chosen)

    def loss_of(marginals):
        return chosen.value(sum(
            chosen.totals(q.reshape(-1, 3), e.truth.reshape(-1))
            for q, e in zip(marginals, examples, strict=True)
        ))

    before = [np.exp(-e.unary) / np.exp(-e.unary).sum(-1, keepdims=True) for e in examples]
    after = [model.infer(e.image, e.unary, max_iter=5, tol=0).marginals for e in examples]
    assert loss_of(after) < loss_of(before)


@pytest.mark.slow
def test_widths_follow_the_size_of_the_images_and_the_range_of_their_colors():
    small, large = training_images(2, (40, 40)), training_images(2, (160, 160))
    faint = [e._replace(image=e.image // 8) for e in large]
    kernels = [
        starting_model(3, given, make_loss("iou", given, 3), family="potts").terms[-1].kernel
        for given in (small, large, faint)
    ]
    assert kernels[0].sigma_xy in (pytest.approx(4.0), pytest.approx(10.0))
    assert kernels[1].sigma_xy in (pytest.approx(16.0), pytest.approx(40.0))
    assert kernels[2].sigma_color < 0.3 * kernels[1].sigma_color


def test_images_without_contrast_volumes_and_nothing_at_all():
    flat = TrainingImage(
        np.full((5, 6, 7), 9, np.uint8), np.random.default_rng(0).random((5, 6, 7, 2)),
        np.zeros((5, 6, 7), int),
    )
    model = starting_model(2, [flat], make_loss("hamming", [flat], 2))
    assert len(model.terms) == 1
    nothing = refusal(lambda: starting_model(2, [], make_loss("iou", [], 2)))
    assert "at least one image" in nothing
    loss = make_loss("iou", [flat], 2)
    assert "family" in refusal(starting_model, 2, [flat], loss, family="full")
