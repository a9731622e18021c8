"""One call that makes a coarse segmentation follow the image."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    InputError,
    as_array,
    as_choice,
    as_count,
    as_image,
    check_finite,
    check_memory,
    first_index,
    image_spacing,
    shown,
)
from crfield.dense.compatibility import Potts
from crfield.dense.inputs import (
    LAYOUTS,
    check_same_grid,
    is_foreground,
    refuse_colors,
    sums_to_one,
)
from crfield.dense.kernels import Bilateral, Spatial
from crfield.dense.meanfield import Callback
from crfield.dense.model import DenseCRF
from crfield.dense.pairwise import Pairwise
from crfield.dense.results import InferenceResult
from crfield.unary.costs import UNKNOWN, unary_from_labels, unary_from_probabilities
from crfield.unary.scribbles import check_unpainted, unary_from_scribbles

# Chosen on real images by experiments/refine_defaults.py, like the other constants of `refine`:
# hard labels say less about where a border lies than probabilities do.
BILATERAL_FOR_LABELS = (30.0, 5.0)
BILATERAL_FOR_PROBABILITIES = (60.0, 8.0)
BILATERAL_FOR_SCRIBBLES = (40.0, 10.0)  # by experiments/grabcut33.py

# Hardly any image shows more; gray values from 0 to 255 that are no labels do.
_MANY_LABELS = 64


def refine(
    image: Any,
    probabilities_or_labels: Any,
    *,
    model: DenseCRF | None = None,
    spatial: Any = 3.0,
    spatial_weight: float = 3.0,
    bilateral: Any = "auto",
    bilateral_weight: float = 6.0,
    algorithm: str | None = None,
    filter: str = "auto",
    max_iter: int | None = None,
    tol: float = 1e-3,
    threads: int | None = None,
    confidence: float = 0.9,
    unknown: int | None = UNKNOWN,
    n_labels: int | None = None,
    scribbles: bool = False,
    layout: str = "channels_last",
    mask: Any = None,
    spacing: Any = None,
    callback: Callback | None = None,
) -> InferenceResult:
    """Refine a segmentation with a dense CRF.

    Parameters
    ----------
    image : (H, W) or (H, W, C) array of any numeric type, or a volume (Z, H, W[, C]); from NumPy,
        Pillow, torch (any device), xarray, zarr or dask. A nibabel image (X, Y, Z) is turned to
        (Z, H, W) and brings its `spacing`; so are the labels of the result: write them back as
        `nibabel.Nifti1Image(result.labels.T.astype("int16"), image.affine)`.
    probabilities_or_labels : floats (*grid, L) that sum to 1 over the labels, floats (*grid,) in
        [0, 1] for the foreground of two labels, or a label map of whole numbers (*grid,); of the
        same kinds as the image, a nibabel image only beside another.
    model : a `DenseCRF`, for instance a learned one, instead of two Potts terms:
    spatial, spatial_weight : width in pixels and weight of the smoothness term; None drops it.
    bilateral, bilateral_weight : (pixels, color) widths and weight of the term that follows the
        image; "auto" is (30, 5) for label maps, (40, 10) for scribbles and (60, 8) for
        probabilities, None drops it.
    confidence, unknown, n_labels : for label maps: the probability that a label is right, the value
        that marks pixels without one (None: there is none), and the number of labels if the map
        does not show them all.
    scribbles : whether the label map is a few painted pixels, certain, with `unknown` everywhere
        else: `unary_from_scribbles` then learns what labels look like from them.
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
    check_model(model)
    values = as_array(probabilities_or_labels, "probabilities_or_labels")
    if image is not None:
        given, image = image, as_image(image)
        if spacing is None:
            spacing = image_spacing(given, min(image.ndim, 3))
    if values.dtype.kind in "iub":
        refuse_colors(values.shape, None if image is None else image.shape)
        if image is not None and values.size:
            check_same_grid(values.shape, image.shape, "labels")
        if model is not None and n_labels is None:
            n_labels = model.n_labels
        if scribbles:
            ids, unary = _costs_of_scribbles(
                values, image, unknown, n_labels, spacing, threads
            )
            if isinstance(bilateral, str) and bilateral == "auto":
                bilateral = BILATERAL_FOR_SCRIBBLES
        else:
            ids, unary = _costs_of_labels(values, confidence, unknown, n_labels)
    elif scribbles:
        raise InputError(
            f"scribbles must be whole numbers, got {values.dtype}; paint labels, one id a pixel."
        )
    else:
        ids, unary = None, _costs_of_probabilities(values, image, layout)
    count = unary.shape[-1]
    chosen = model_for(
        count, ids is not None, model, spatial, spatial_weight, bilateral, bilateral_weight
    )
    result = chosen.infer(
        image, unary, algorithm=algorithm, filter=filter, max_iter=max_iter, tol=tol,
        threads=threads, mask=mask, spacing=spacing, callback=callback,
    )
    return result if ids is None else dataclasses.replace(result, label_ids=ids)


def check_model(model: Any) -> None:
    """Refuse what is neither a model nor None."""
    if model is not None and not isinstance(model, DenseCRF):
        raise InputError(
            f"model must be a DenseCRF, got {shown(model)}; load files with DenseCRF.load."
        )


def model_for(
    n_labels: int, from_labels: bool, model: DenseCRF | None, spatial: Any, spatial_weight: float,
    bilateral: Any, bilateral_weight: float,
) -> DenseCRF:
    """The given model if it fits the labels, or the customary one of the widths and weights."""
    if model is None:
        if isinstance(bilateral, str) and bilateral == "auto":
            bilateral = BILATERAL_FOR_LABELS if from_labels else BILATERAL_FOR_PROBABILITIES
        return potts_model(n_labels, spatial, spatial_weight, bilateral, bilateral_weight)
    if model.n_labels != n_labels:
        raise InputError(
            f"the model has {model.n_labels} labels, the segmentation {n_labels}; "
            "use a model learned for these labels."
        )
    return model


def potts_model(
    n_labels: int, spatial: Any, spatial_weight: float, bilateral: Any, bilateral_weight: float
) -> DenseCRF:
    """A Potts term on positions and one on positions and colors; None drops a term."""
    terms = []
    if spatial is not None:
        terms.append(Pairwise(Spatial(spatial), Potts(spatial_weight)))
    if bilateral is not None:
        try:
            sigma_xy, sigma_color = bilateral
        except (TypeError, ValueError):
            raise InputError(
                f"bilateral must be a pair (pixels, color), got {shown(bilateral)}; "
                "for example (60, 8)."
            ) from None
        terms.append(Pairwise(Bilateral(sigma_xy, sigma_color), Potts(bilateral_weight)))
    return DenseCRF(n_labels, terms)


def _costs_of_scribbles(
    labels: NDArray[Any], image: Any, unknown: int | None, n_labels: int | None, spacing: Any,
    threads: int | None,
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The ids that are painted, or all of 0..n_labels-1, and costs by colors and distances."""
    if image is None:
        raise InputError("scribbles need the image that they are painted on; pass it.")
    check_unpainted(labels != unknown, unknown)
    if n_labels is None:
        ids = known_ids(present_ids(labels), unknown)
    else:
        ids = np.arange(as_count(n_labels, "n_labels"))
    places = np.searchsorted(ids, labels).clip(0, len(ids) - 1)
    painted = np.where(ids[places] == labels, places, -1)
    pixels = image[..., None] if image.ndim == labels.ndim else image
    unary = unary_from_scribbles(
        pixels, painted, len(ids), unknown=-1, spacing=spacing, threads=threads
    )
    return ids, unary


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
    check_memory(
        40.0 * labels.size, f"A label map of shape {labels.shape}",
        "work on a smaller image or on tiles",
    )
    ids = known_ids(present_ids(labels), unknown)
    if len(ids) > _MANY_LABELS and ids[0] >= 0 and ids[-1] <= 255:
        warnings.warn(
            f"the label map holds {len(ids)} labels and looks like a soft mask: threshold it, or "
            "pass it divided by 255 as the foreground's probability.",
            stacklevel=3,
        )
    return ids, costs_of_ids(labels, ids, confidence, unknown)


def present_ids(labels: NDArray[Any]) -> NDArray[np.int64]:
    """The whole numbers that occur in a label map (*grid,), or in a part of one, in order."""
    if labels.dtype == np.uint64 and labels.max() > np.iinfo(np.int64).max:
        raise InputError(
            f"labels must be below 2**63, got {labels.max()}; number them from 0."
        )
    return np.unique(labels).astype(np.int64)


def known_ids(present: NDArray[np.int64], unknown: int | None) -> NDArray[np.int64]:
    """The ids (L,) of labels among the numbers that occur in the whole map."""
    if unknown is not None:
        unknown = as_count(unknown, "unknown", -(2**63), 2**63 - 1)
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
    return ids


def costs_of_ids(
    labels: NDArray[Any], ids: NDArray[np.int64], confidence: float, unknown: int | None
) -> NDArray[Any]:
    """Costs (*grid, L) of a label map (*grid,) whose labels are `ids` (L,)."""
    labels = labels.astype(np.int64)
    compact = np.searchsorted(ids, labels)
    compact[labels == unknown] = -1
    return unary_from_labels(compact, len(ids), confidence=confidence, unknown=-1)


def costs_of_foreground(values: NDArray[Any]) -> NDArray[Any]:
    """Costs (*grid, 2) of the foreground's probabilities (*grid,)."""
    check_finite(values, "probabilities")
    bad = (values < 0.0) | (values > 1.0)
    if bad.any():
        index = first_index(bad)
        raise InputError(
            "one number a pixel must be the foreground's probability in [0, 1], got "
            f"{values[index]:g} at index {index}; convert a label map with .astype(int)."
        )
    return unary_from_probabilities(np.stack([1.0 - values, values], axis=-1).astype(values.dtype))


def _costs_of_probabilities(values: NDArray[Any], image: Any, layout: str) -> NDArray[Any]:
    shape, first = values.shape, layout == "channels_first" and values.ndim >= 3
    if first:
        values = np.moveaxis(values, 0, -1)
    if image is None:
        return unary_from_probabilities(values)
    batched = shape[:1] == (1,) and image.shape[:1] != (1,)
    foreground = False if batched else is_foreground(values.shape, image.shape)
    if foreground is None:
        foreground = not sums_to_one(values)
    if not foreground:
        if values.ndim > 1 and values.size:
            check_same_grid(shape, image.shape, "probabilities", 0 if first else -1)
        return unary_from_probabilities(values)
    if ((values == 0) | (values == 1)).all():
        warnings.warn(
            "the foreground's probabilities are all 0 or 1, which looks like a label map: "
            "use .astype(int).",
            stacklevel=3,
        )
    return costs_of_foreground(values)
