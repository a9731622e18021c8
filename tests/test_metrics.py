import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crfield.metrics import (
    boundary_counts,
    boundary_iou,
    calibration_counts,
    calibration_error,
    class_accuracy,
    confusion_matrix,
    iou_per_label,
    mean_iou,
    paired_bootstrap,
    pixel_accuracy,
    trimap_confusion,
)
from refusal import refusal

TRUTH = np.array([[0, 0, 1], [1, 1, 255]], np.uint8)
PREDICTED = np.array([[0, 1, 1], [1, 0, 0]], np.uint8)
label_maps = st.integers(1, 4).flatmap(
    lambda n_labels: st.tuples(
        st.just(n_labels),
        *[hnp.arrays(np.int32, (3, 5), elements=st.integers(0, n_labels - 1)) for _ in range(2)],
    )
)


def test_confusion_counts_by_hand():
    counts = confusion_matrix(TRUTH, PREDICTED, 3)
    assert counts.dtype == np.int64
    assert counts.tolist() == [[1, 1, 0], [1, 2, 0], [0, 0, 0]]


def test_scores_by_hand():
    counts = confusion_matrix(TRUTH, PREDICTED, 3)
    np.testing.assert_allclose(iou_per_label(counts), [1 / 3, 2 / 4, np.nan])
    assert mean_iou(counts) == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert pixel_accuracy(counts) == pytest.approx(3 / 5)
    assert class_accuracy(counts) == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_label_only_predicted_is_left_out_or_zero():
    """Its pixels count against the label that they belong to; class accuracy never sees it."""
    counts = confusion_matrix([0, 0, 0, 0], [0, 0, 0, 1], 3)
    np.testing.assert_equal(iou_per_label(counts), [0.75, np.nan, np.nan])
    np.testing.assert_equal(iou_per_label(counts, absent="zero"), [0.75, 0.0, np.nan])
    assert (mean_iou(counts), mean_iou(counts, absent="zero")) == (0.75, 0.375)
    assert class_accuracy(counts) == 0.75


@pytest.mark.parametrize("score", [iou_per_label, mean_iou])
def test_another_word_for_absent_is_refused(score):
    assert refusal(score, np.eye(2), absent="one").startswith(
        "absent must be one of 'skip', 'zero', got 'one'")


def test_nothing_counted_gives_nan():
    counts = confusion_matrix([255, 255], [0, 1], 2)
    assert counts.sum() == 0
    assert np.isnan([mean_iou(counts), pixel_accuracy(counts), class_accuracy(counts)]).all()


def test_void_pixels_may_hold_any_prediction():
    assert confusion_matrix([0, 255], [0, 77], 1).tolist() == [[1]]
    assert confusion_matrix([0, -1], [0, -1], 1, void=-1).tolist() == [[1]]


def test_bool_masks_are_two_labels():
    truth = np.array([True, False, True])
    assert confusion_matrix(truth, truth, 2).tolist() == [[1, 0], [0, 2]]


def test_many_labels_do_not_overflow_small_integer_types():
    labels = np.array([254, 200], np.uint8)
    counts = confusion_matrix(labels, labels[::-1], 255)
    assert counts[254, 200] == counts[200, 254] == 1
    assert counts.sum() == 2


@given(label_maps)
def test_matches_counting_pixel_by_pixel(case):
    n_labels, truth, predicted = case
    expected = np.zeros((n_labels, n_labels), int)
    for pair in zip(truth.ravel(), predicted.ravel(), strict=True):
        expected[pair] += 1
    counts = confusion_matrix(truth, predicted, n_labels)
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(confusion_matrix(predicted, truth, n_labels), counts.T)
    for label, iou in enumerate(iou_per_label(counts)):
        union = np.count_nonzero((truth == label) | (predicted == label))
        both = np.count_nonzero((truth == label) & (predicted == label))
        np.testing.assert_allclose(iou, both / union if label in truth else np.nan)
        zero = iou_per_label(counts, absent="zero")[label]
        np.testing.assert_allclose(zero, both / union if union else np.nan)


@given(label_maps)
def test_perfect_prediction_scores_one(case):
    n_labels, truth, _ = case
    counts = confusion_matrix(truth, truth, n_labels)
    assert mean_iou(counts) == pixel_accuracy(counts) == class_accuracy(counts) == 1.0


@pytest.mark.parametrize(("arguments", "message"), [
    (([0, 1], [0, 1, 1], 2), "one shape, got (2,) and (3,)"),
    (([0, 2], [0, 1], 2), "truth must hold labels from 0 to 1, got 2 at index (1,)"),
    (([0, 1], [-1, 1], 2), "predicted must hold labels from 0 to 1, got -1 at index (0,)"),
    (([0, 1], [0, 255], 2), r"predicted must hold labels from 0 to 1, got 255"),
    (([0.0, 1.0], [0, 1], 2), r"truth must hold whole numbers, got dtype float64"),
    (([0, 1], [0, 1], 0), r"n_labels must be at least 1, got 0"),
    (([0, 1], [0, 1], 2, 1), r"void must be no label from 0 to 1, got 1"),
])
def test_wrong_label_maps_are_explained(arguments, message):
    assert message in refusal(confusion_matrix, *arguments)


@pytest.mark.parametrize("score", [iou_per_label, mean_iou, pixel_accuracy, class_accuracy])
@pytest.mark.parametrize(("confusion", "message"), [
    (np.zeros((2, 3), int), "square matrix (L, L), got shape (2, 3)"),
    (np.array([[1, -1], [0, 1]]), "at least zero"),
    (np.array([[1.0, np.nan], [0.0, 1.0]]), "at least zero"),
])
def test_wrong_confusions_are_explained(score, confusion, message):
    assert message in refusal(score, confusion)


def trimap_pixel_by_pixel(truth, width, void):
    """The band of a trimap by its definition."""
    places = list(np.ndindex(truth.shape))
    border = [
        one for one, other in itertools.permutations(places, 2)
        if math.dist(one, other) == 1 and truth[one] != truth[other]
        and void not in (truth[one], truth[other])
    ]
    near = [any(math.dist(place, one) < width for one in border) for place in places]
    return np.reshape(near, truth.shape)


def test_trimap_by_hand():
    truth = np.array([[0, 0, 0, 0, 1, 1, 1, 255, 2, 2]])
    predicted = np.where(truth == 255, 77, truth)
    assert np.diagonal(trimap_confusion(truth, predicted, 3, 1)).tolist() == [1, 1, 0]
    assert np.diagonal(trimap_confusion(truth, predicted, 3, 2)).tolist() == [2, 2, 0]
    assert np.diagonal(trimap_confusion(truth, predicted, 3, 5)).tolist() == [4, 3, 1]


@given(
    hnp.arrays(
        np.int16,
        st.one_of(hnp.array_shapes(min_dims=1, max_dims=2, max_side=7), st.just((3, 4, 3))),
        elements=st.sampled_from([0, 0, 0, 0, 1, 9]),
    ),
    st.sampled_from([0.5, 1, 1.2, 1.5, 2, 2.3, 3, 4, 20]),
)
def test_trimap_matches_its_definition(truth, width):
    predicted = np.arange(truth.size).reshape(truth.shape) % 2
    near = trimap_pixel_by_pixel(truth, width, void=9)
    expected = confusion_matrix(truth[near], predicted[near], 2, void=9)
    counts = trimap_confusion(truth, predicted, 2, width, void=9)
    np.testing.assert_array_equal(counts, expected)


def test_trimap_ends_before_its_width():
    truth = np.full((5, 5), 255)
    truth[0, :2] = 0, 1
    truth[4, 4] = 0  # three columns and four rows from the border
    assert trimap_confusion(truth, truth, 2, 5).sum() == 2
    assert trimap_confusion(truth, truth, 2, 5.01).sum() == 3


def test_wide_trimap_is_the_whole_image_and_one_label_has_none():
    counts = confusion_matrix(TRUTH, PREDICTED, 3)
    np.testing.assert_array_equal(trimap_confusion(TRUTH, PREDICTED, 3, 1e200), counts)
    assert trimap_confusion(np.zeros((4, 4), int), np.ones((4, 4), int), 2, 100).sum() == 0


@pytest.mark.parametrize(("arguments", "message"), [
    (([0, 1], [0, 1], 2, 0), "width must be positive, got 0"),
    (([0, 1], [0, 1], 2, "3"), "width must be a number"),
    (([0, 0, 0, 1], [5, 0, 0, 1], 2, 1), r"predicted must hold labels .* got 5 at index"),
    (([0, 1], [0, 1, 1], 2, 1), "one shape"),
])
def test_wrong_trimaps_are_explained(arguments, message):
    assert re.search(message, refusal(trimap_confusion, *arguments))


def some_confusions(n_images, seed, share):
    """Counts of images whose pixels are right with about the probability `share`."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 20, (n_images, 3, 3)) * (1 - share)
    return np.rint(counts + 20 * share * rng.random((n_images, 1, 1)) * np.eye(3)).astype(int)


def test_bootstrap_matches_drawing_one_set_at_a_time():
    a, b = some_confusions(12, 0, 0.7), some_confusions(12, 1, 0.5)
    difference, low, high = paired_bootstrap(a, b, n_resamples=3000)
    assert difference == mean_iou(a.sum(0)) - mean_iou(b.sum(0))
    rng = np.random.default_rng(5)
    drawn = []
    for _ in range(3000):
        images = rng.integers(12, size=12)
        drawn.append(mean_iou(a[images].sum(0)) - mean_iou(b[images].sum(0)))
    expected = np.quantile(drawn, [0.025, 0.975])
    np.testing.assert_allclose([low, high], expected, atol=0.05 * np.ptp(expected))
    assert low < difference < high


def test_bootstrap_is_paired_antisymmetric_and_repeatable():
    a, b = some_confusions(10, 0, 0.7), some_confusions(10, 1, 0.5)
    assert paired_bootstrap(a, a, n_resamples=70) == (0, 0, 0)
    difference, low, high = paired_bootstrap(a, b, pixel_accuracy, 70)
    reversed_result = paired_bootstrap(b, a, pixel_accuracy, 70)
    np.testing.assert_allclose(reversed_result, (-difference, -high, -low))
    assert paired_bootstrap(list(a), list(b), pixel_accuracy, 70) == (difference, low, high)
    assert paired_bootstrap(a, b, pixel_accuracy, 70, seed=1) != (difference, low, high)


def test_bootstrap_of_one_image_has_no_width():
    a, b = some_confusions(1, 0, 0.7), some_confusions(1, 1, 0.5)
    difference, low, high = paired_bootstrap(a, b, n_resamples=5)
    assert difference == low == high


def test_bootstrap_interval_is_that_of_the_sets_drawn():
    a, b = some_confusions(10, 0, 0.7), some_confusions(10, 1, 0.5)
    difference, low, high = paired_bootstrap(a, b, n_resamples=1)
    assert low == high != difference


@given(st.integers(2, 6), st.integers(0, 100))
def test_bootstrap_of_a_shift_is_the_shift(n_images, seed):
    a = some_confusions(n_images, seed, 0.7)
    result = paired_bootstrap(
        a, a + np.eye(3, dtype=int), lambda counts: float(np.trace(counts)), 10, seed
    )
    np.testing.assert_allclose(result, -3 * n_images)


@pytest.mark.parametrize(("arguments", "message"), [
    ((np.ones((3, 3)), np.ones((3, 3))), r"confusions_a must .* got shape \(3, 3\)"),
    ((np.ones((2, 3, 3)), np.ones((2, 3, 4))), r"confusions_b must .* \(2, 3, 4\)"),
    ((np.ones((0, 3, 3)), np.ones((0, 3, 3))), "confusions_a must"),
    (([np.ones((2, 2)), np.ones((3, 3))], np.ones((2, 2, 2))), "got several sizes"),
    ((np.ones((2, 3, 3)), np.ones((3, 3, 3))), "the same images"),
    ((np.ones((2, 3, 3)), -np.ones((2, 3, 3))), "confusions_b must hold counts of at least"),
    ((np.zeros((2, 3, 3)), np.ones((2, 3, 3))), "got nan; pass more images"),
    ((np.ones((2, 3, 3)), np.ones((2, 3, 3)), mean_iou, 0), "n_resamples must be at least 1"),
])
def test_wrong_bootstraps_are_explained(arguments, message):
    assert re.search(message, refusal(paired_bootstrap, *arguments))


def boundaries_pixel_by_pixel(labels, width, counted):
    """Which pixels of its label lie less than a width from a border, by definition."""
    places = list(np.ndindex(labels.shape))
    border = [
        one for one, other in itertools.permutations(places, 2)
        if math.dist(one, other) == 1 and labels[one] != labels[other]
        and counted[one] and counted[other]
    ]
    return np.reshape(
        [counted[p] and any(math.dist(p, one) < width for one in border) for p in places],
        labels.shape,
    )


@given(
    hnp.arrays(
        np.int16, st.one_of(hnp.array_shapes(min_dims=1, max_dims=3, max_side=5), st.just((7, 6))),
        elements=st.sampled_from([0, 0, 0, 1, 2, 9]),
    ),
    st.sampled_from([1, 1.5, 2, 2.3, 20]), st.integers(0, 99),
)
def test_boundaries_match_their_definition(truth, width, seed):
    predicted = np.random.default_rng(seed).choice(
        [0, 1, 2], truth.shape, p=[0.7, 0.2, 0.1]
    )
    counted = truth != 9
    bands = [boundaries_pixel_by_pixel(labels, width, counted) for labels in (truth, predicted)]
    expected = [
        [(a & b & (truth == k) & (predicted == k)).sum(), (a & (truth == k)).sum(),
         (b & (predicted == k)).sum()]
        for k in range(3) for a, b in [bands]
    ]
    counts = boundary_counts(truth, predicted, 3, width, void=9)
    np.testing.assert_array_equal(counts.T, expected)


def test_boundary_iou_by_hand():
    truth = np.zeros((6, 8), int)
    truth[:, 4:] = 1
    predicted = np.roll(truth, 1, axis=1)
    predicted[:, 0] = 0
    counts = boundary_counts(truth, predicted, 3, 2)
    # Two columns on either side of the border, which is one column off: one is in both.
    assert counts.tolist() == [[6, 6, 0], [12, 12, 0], [12, 12, 0]]
    assert boundary_iou(counts) == pytest.approx(1 / 3)
    assert boundary_iou(boundary_counts(truth, truth, 2)) == 1.0
    assert math.isnan(boundary_iou(boundary_counts(truth * 0, truth, 2)))


def test_default_boundaries_have_a_share_of_the_diagonal():
    truth = np.zeros((300, 400), int)
    truth[:, 200:] = 1
    assert boundary_counts(truth, truth, 2)[1].tolist() == [3000, 3000]  # 2 % of 500 pixels
    assert boundary_counts(truth[:10, 190:210], truth[:10, 190:210], 2)[1].tolist() == [10, 10]


def test_calibration_by_hand():
    marginals = np.array([[0.55, 0.45], [0.35, 0.65], [0.95, 0.05], [1.0, 0.0], [0.5, 0.5]])
    truth = np.array([0, 0, 0, 1, 255])
    counts = calibration_counts(truth, marginals, n_bins=10)
    assert counts[:2].tolist() == [
        [0, 0, 0, 0, 0, 1, 1, 0, 0, 2], [0, 0, 0, 0, 0, 1, 0, 0, 0, 1],
    ]
    # |1 - 0.55| + |0 - 0.65| + |1 - 1.95|, of four pixels.
    assert calibration_error(counts) == pytest.approx((0.45 + 0.65 + 0.95) / 4)
    both = counts + calibration_counts(np.array([1]), np.array([[0.45, 0.55]]), n_bins=10)
    assert calibration_error(both) == pytest.approx((0.9 + 0.65 + 0.95) / 5)
    assert math.isnan(calibration_error(np.zeros((3, 4))))


def test_marginals_that_say_what_is_so_are_calibrated():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 200_000)
    truth = (p.cumsum(1) < rng.random((len(p), 1))).sum(1)
    assert calibration_error(calibration_counts(truth, p)) < 0.005
    sharp = p**3 / (p**3).sum(1, keepdims=True)
    assert calibration_error(calibration_counts(truth, sharp)) > 0.1


@pytest.mark.parametrize(("call", "arguments", "message"), [
    (boundary_counts, ([0, 1], [0, 1], 2, 0), "width must be positive"),
    (boundary_iou, (np.zeros((2, 3)),), "build them with boundary_counts"),
    (calibration_error, (-np.ones((3, 2)),), "build it with calibration_counts"),
    (calibration_counts, ([0, 1], [0.5, 0.5]), "labels come last"),
    (calibration_counts, ([0, 1], [[0.5, 0.5], [0.1, 0.9]], 0), "n_bins"),
    (calibration_counts, ([0, 5], [[0.5, 0.5], [0.1, 0.9]]), "truth must hold labels"),
])
def test_wrong_counts_are_explained(call, arguments, message):
    assert message in refusal(call, *arguments)
