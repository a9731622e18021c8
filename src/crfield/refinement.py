"""One call that makes a coarse segmentation follow the image."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._inputs import LAYOUTS
from crfield._validate import (
    InputError,
    as_array,
    as_choice,
    as_count,
    check_finite,
    check_memory,
    first_index,
    shown,
)
from crfield.compatibility import Potts
from crfield.dense import DenseCRF, Pairwise
from crfield.features import image_array
from crfield.kernels import Bilateral, Spatial
from crfield.meanfield import Callback
from crfield.results import InferenceResult
from crfield.unary import UNKNOWN, unary_from_labels, unary_from_probabilities

# Chosen on real images by experiments/refine_defaults.py, like the other constants of `refine`:
# hard labels say less about where a border lies than probabilities do.
BILATERAL_FOR_LABELS = (30.0, 5.0)
BILATERAL_FOR_PROBABILITIES = (60.0, 8.0)


def refine(
    image: Any,
    probabilities_or_labels: Any,
    *,
    model: DenseCRF | None = None,
    spatial: Any = 3.0,
    spatial_weight: float = 3.0,
    bilateral: Any = "auto",
    bilateral_weight: float = 6.0,
    algorithm: str = "concave",
    filter: str = "auto",
    max_iter: int = 10,
    tol: float = 1e-3,
    threads: int | None = None,
    confidence: float = 0.9,
    unknown: int | None = UNKNOWN,
    n_labels: int | None = None,
    layout: str = "channels_last",
    mask: Any = None,
    spacing: Any = None,
    callback: Callback | None = None,
) -> InferenceResult:
    """Refine a segmentation with a dense CRF.

    Parameters
    ----------
    image : (H, W) or (H, W, C) array of any numeric type, a volume (Z, H, W[, C]), or a PIL image.
    probabilities_or_labels : floats (*grid, L) that sum to 1 over the labels, floats (*grid,) in
        [0, 1] for the foreground of two labels, or a label map of whole numbers (*grid,).
    model : a `DenseCRF`, for instance a learned one, instead of two Potts terms:
    spatial, spatial_weight : width in pixels and weight of the smoothness term; None drops it.
    bilateral, bilateral_weight : (pixels, colour) widths and weight of the term that follows the
        image; "auto" is (30, 5) for label maps and (60, 8) for probabilities, None drops it.
    confidence, unknown, n_labels : for label maps: the probability that a label is right, the value
        that marks pixels without one (None: there is none), and the number of labels if the map
        does not show them all.
    Other parameters are those of `DenseCRF.infer`.

    Returns
    -------
    InferenceResult with `labels` in the ids of the given label map.

    Examples
    --------
    >>> result = refine(image, probabilities)       # doctest: +SKIP
    >>> result.labels.shape                         # doctest: +SKIP
    (480, 640)
    """
    as_choice(layout, "layout", LAYOUTS)
    if model is not None and not isinstance(model, DenseCRF):
        raise InputError(
            f"model must be a DenseCRF, got {shown(model)}; load files with DenseCRF.load."
        )
    values = as_array(probabilities_or_labels, "probabilities_or_labels")
    if image is not None:
        image = image_array(image)
    if values.dtype.kind in "iub":
        _refuse_colours(values, image)
        if model is not None and n_labels is None:
            n_labels = model.n_labels
        ids, unary = _costs_of_labels(values, confidence, unknown, n_labels)
    else:
        ids, unary = None, _costs_of_probabilities(values, image, layout)
    count = unary.shape[-1]
    if model is None:
        if isinstance(bilateral, str) and bilateral == "auto":
            bilateral = BILATERAL_FOR_PROBABILITIES if ids is None else BILATERAL_FOR_LABELS
        model = potts_model(count, spatial, spatial_weight, bilateral, bilateral_weight)
    elif model.n_labels != count:
        raise InputError(
            f"the model has {model.n_labels} labels, the segmentation {count}; "
            "use a model learned for these labels."
        )
    result = model.infer(
        image, unary, algorithm=algorithm, filter=filter, max_iter=max_iter, tol=tol,
        threads=threads, mask=mask, spacing=spacing, callback=callback,
    )
    return result if ids is None else dataclasses.replace(result, label_ids=ids)


def potts_model(
    n_labels: int, spatial: Any, spatial_weight: float, bilateral: Any, bilateral_weight: float
) -> DenseCRF:
    """A Potts term on positions and one on positions and colours; None drops a term."""
    terms = []
    if spatial is not None:
        terms.append(Pairwise(Spatial(spatial), Potts(spatial_weight)))
    if bilateral is not None:
        try:
            sigma_xy, sigma_color = bilateral
        except (TypeError, ValueError):
            raise InputError(
                f"bilateral must be a pair (pixels, colour), got {shown(bilateral)}; "
                "for example (60, 8)."
            ) from None
        terms.append(Pairwise(Bilateral(sigma_xy, sigma_color), Potts(bilateral_weight)))
    return DenseCRF(n_labels, terms)


def _costs_of_labels(
    labels: NDArray[Any], confidence: float, unknown: int | None, n_labels: int | None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The ids that occur and the costs of a label map; ids need not be consecutive."""
    if n_labels is not None:
        count = as_count(n_labels, "n_labels")
        unary = unary_from_labels(labels, count, confidence=confidence, unknown=unknown)
        return np.arange(count), unary
    if labels.size == 0 or labels.ndim == 0:
        raise InputError(
            f"labels must hold at least one pixel, got shape {labels.shape}; pass the label map."
        )
    if labels.dtype == np.uint64 and labels.max() > np.iinfo(np.int64).max:
        raise InputError(
            f"labels must be below 2**63, got {labels.max()}; number them from 0."
        )
    check_memory(
        40.0 * labels.size, f"A label map of shape {labels.shape}",
        "work on a smaller image or on tiles",
    )
    if unknown is not None:
        unknown = as_count(unknown, "unknown", -(2**63), 2**63 - 1)
    labels = labels.astype(np.int64)
    present = np.unique(labels)
    ids = present if unknown is None else present[present != unknown]
    if len(ids) == 0:
        raise InputError(
            f"labels must hold at least one known label, got only the unknown value {unknown}; "
            "pass unknown=None if it is a label."
        )
    if len(ids) == 1 and len(present) == 2:
        raise InputError(
            f"labels must hold two labels or more, got only {ids[0]} beside the unknown value "
            f"{unknown}; if {unknown} is a label (a 0/255 mask), pass unknown=None."
        )
    compact = np.searchsorted(ids, labels)
    compact[labels == unknown] = -1
    unary = unary_from_labels(compact, len(ids), confidence=confidence, unknown=-1)
    return ids, unary


def _costs_of_probabilities(values: NDArray[Any], image: Any, layout: str) -> NDArray[Any]:
    if layout == "channels_first" and values.ndim >= 3:
        values = np.moveaxis(values, 0, -1)
    if image is not None:
        grids = [image.shape, image.shape[:-1]]
        if _is_foreground(values, image.shape):
            check_finite(values, "probabilities")
            bad = (values < 0.0) | (values > 1.0)
            if bad.any():
                index = first_index(bad)
                raise InputError(
                    "one number a pixel must be the foreground's probability in [0, 1], got "
                    f"{values[index]:g} at index {index}; convert a label map with .astype(int)."
                )
            values = np.stack([1.0 - values, values], axis=-1).astype(values.dtype)
        elif values.shape[:-1] not in grids and values.shape[1:] in grids:
            raise InputError(
                f"probabilities must have the labels last, got {values.shape} for an image of "
                f'{image.shape}; pass layout="channels_first".'
            )
    return unary_from_probabilities(values)


def _is_foreground(values: NDArray[Any], image_shape: tuple[int, ...]) -> bool:
    """Whether floats hold one number a pixel rather than one a pixel and label.

    Floats of the shape of a 3-D image may be both: a volume's foreground, or as many labels as the
    image has channels. They are taken for labels if the image looks like colour or they sum to 1.
    """
    if values.ndim < 2 or values.shape not in (image_shape, image_shape[:-1]):
        return False
    if values.ndim == 2 or values.shape != image_shape:
        return True
    return values.shape[-1] > 4 and bool((np.abs(values.sum(-1) - 1.0) > 0.02).any())


def _refuse_colours(labels: NDArray[Any], image: NDArray[Any] | None) -> None:
    """Refuse a picture in place of a label map."""
    if image is None or labels.ndim != 3 or labels.shape[-1] not in (3, 4):
        return
    if labels.shape == image.shape or labels.shape[:-1] == image.shape:
        raise InputError(
            f"labels must be one whole number a pixel, got shape {labels.shape}, which looks like "
            "a colour picture; pass the array of label numbers."
        )
