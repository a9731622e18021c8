import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crfield._validate import InputError
from crfield.metrics import (
    class_accuracy,
    confusion_matrix,
    iou_per_label,
    mean_iou,
    pixel_accuracy,
)

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


def test_label_only_predicted_has_iou_zero_and_does_not_enter_class_accuracy():
    counts = confusion_matrix([0, 0, 0, 0], [0, 0, 0, 1], 2)
    assert iou_per_label(counts).tolist() == [0.75, 0.0]
    assert class_accuracy(counts) == 0.75


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
        np.testing.assert_allclose(iou, both / union if union else np.nan)


@given(label_maps)
def test_perfect_prediction_scores_one(case):
    n_labels, truth, _ = case
    counts = confusion_matrix(truth, truth, n_labels)
    assert mean_iou(counts) == pixel_accuracy(counts) == class_accuracy(counts) == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0, 1, 1], 2), r"one shape, got \(2,\) and \(3,\)"),
        (([0, 2], [0, 1], 2), r"truth must hold labels from 0 to 1, got 2 at index \(1,\)"),
        (([0, 1], [-1, 1], 2), r"predicted must hold labels from 0 to 1, got -1 at index \(0,\)"),
        (([0, 1], [0, 255], 2), r"predicted must hold labels from 0 to 1, got 255"),
        (([0.0, 1.0], [0, 1], 2), r"truth must hold whole numbers, got dtype float64"),
        (([0, 1], [0, 1], 0), r"n_labels must be at least 1, got 0"),
        (([0, 1], [0, 1], 2, 1), r"void must be no label from 0 to 1, got 1"),
    ],
)
def test_wrong_label_maps_are_explained(arguments, message):
    with pytest.raises(InputError, match=message):
        confusion_matrix(*arguments)


@pytest.mark.parametrize("score", [iou_per_label, mean_iou, pixel_accuracy, class_accuracy])
@pytest.mark.parametrize(
    ("confusion", "message"),
    [
        (np.zeros((2, 3), int), r"square matrix \(L, L\), got shape \(2, 3\)"),
        (np.array([[1, -1], [0, 1]]), "at least zero"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "at least zero"),
    ],
)
def test_wrong_confusions_are_explained(score, confusion, message):
    with pytest.raises(InputError, match=message):
        score(confusion)
