"""One call that makes a coarse segmentation follow the image."""

from __future__ import annotations

import dataclasses
from typing import Any

from crfield._core.validate import (
    InputError,
    as_array,
    as_choice,
    as_image,
    image_spacing,
    shown,
)
from crfield.dense.compatibility import Potts
from crfield.dense.inputs import LAYOUTS
from crfield.dense.kernels import Bilateral, Spatial
from crfield.dense.meanfield import Callback
from crfield.dense.model import DenseCRF, Pairwise
from crfield.dense.results import InferenceResult
from crfield.unary.costs import (
    BILATERAL,
    BILATERAL_WEIGHT,
    CONFIDENCE,
    SPATIAL,
    SPATIAL_WEIGHT,
    UNKNOWN,
    Segmentation,
    read_segmentation,
)
from crfield.unary.scribbles import scribble_costs


def refine(
    image: Any,
    probabilities_or_labels: Any,
    *,
    model: DenseCRF | None = None,
    spatial: Any = SPATIAL,
    spatial_weight: float = SPATIAL_WEIGHT,
    bilateral: Any = "auto",
    bilateral_weight: float = BILATERAL_WEIGHT,
    algorithm: str | None = None,
    filter: str = "auto",
    max_iter: int | None = None,
    tol: float = 1e-3,
    threads: int | None = None,
    confidence: float = CONFIDENCE,
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
    if model is not None and n_labels is None:
        n_labels = model.n_labels
    segmentation, values = read_segmentation(
        values, None if image is None else image.shape, layout=layout, scribbles=scribbles,
        confidence=confidence, unknown=unknown, n_labels=n_labels,
    )
    if scribbles:
        unary = scribble_costs(segmentation, values, image, spacing=spacing, threads=threads)
    else:
        unary = segmentation.costs(values)
    crf = model_for(segmentation, model, spatial, spatial_weight, bilateral, bilateral_weight)
    result = crf.infer(
        image, unary, algorithm=algorithm, filter=filter, max_iter=max_iter, tol=tol,
        threads=threads, mask=mask, spacing=spacing, callback=callback,
    )
    return dataclasses.replace(result, label_ids=segmentation.ids)


def check_model(model: Any) -> None:
    """Refuse what is neither a model nor None."""
    if model is not None and not isinstance(model, DenseCRF):
        raise InputError(
            f"model must be a DenseCRF, got {shown(model)}; load files with DenseCRF.load."
        )


def model_for(
    segmentation: Segmentation, model: DenseCRF | None, spatial: Any, spatial_weight: float,
    bilateral: Any, bilateral_weight: float,
) -> DenseCRF:
    """The given model if it fits the labels, or the customary one of the widths and weights."""
    n_labels = len(segmentation.ids)
    if model is None:
        if isinstance(bilateral, str) and bilateral == "auto":
            bilateral = BILATERAL[segmentation.kind]
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
