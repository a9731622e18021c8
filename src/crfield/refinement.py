"""One call that makes a coarse segmentation follow the image."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Concatenate, ParamSpec, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray

from crfield._core.alignment import beside_scan
from crfield._core.foreign import is_spatial_image
from crfield._core.progress import shown_progress
from crfield._core.validate import (
    InputError,
    as_array,
    as_choice,
    as_image,
    as_positive_number,
    image_size,
    image_spacing,
    shown,
    working_dtype,
)
from crfield._core.warning import warn
from crfield.dense.compatibility import Potts
from crfield.dense.inputs import LAYOUTS, Shape, find_form, inference_bytes, refuse_inference
from crfield.dense.kernels import Bilateral, Spatial, warn_of_normalized
from crfield.dense.meanfield import Callback
from crfield.dense.model import DEFAULT_MAX_ITER, DenseCRF, Pairwise
from crfield.dense.observation import observe
from crfield.dense.results import InferenceResult
from crfield.unary.costs import (
    CONFIDENCE,
    MASK,
    UNKNOWN,
    Segmentation,
    mask_values,
    outside_of,
    read_segmentation,
)
from crfield.unary.defaults import VOLUME_SHARES, Structure, Terms, default_terms, measure
from crfield.unary.scribbles import scribble_costs

Options = ParamSpec("Options")

_OTHER_SIZE = 1.5  # times as large or as small as what a model was learned from


class _OneOrSeveral(Protocol[Options]):
    """What refines an image, or several in a list or a tuple."""

    @overload
    def __call__(
        self, image: list[Any] | tuple[Any, ...], probabilities_or_labels: Any,
        *args: Options.args, **options: Options.kwargs,
    ) -> list[InferenceResult]: ...
    @overload
    def __call__(
        self, image: Any, probabilities_or_labels: Any,
        *args: Options.args, **options: Options.kwargs,
    ) -> InferenceResult: ...


def _or_several(
    refine_one: Callable[Concatenate[Any, Any, Options], InferenceResult]
) -> _OneOrSeveral[Options]:
    """`refine_one` that also takes several images, and gives a list of results then."""
    one: Callable[..., InferenceResult] = refine_one

    @functools.wraps(refine_one)
    def refine_all(image: Any, probabilities_or_labels: Any, **options: Any) -> Any:
        pairs = split_batch(
            image, probabilities_or_labels, options.get("spacing"), options.get("layout")
        )
        if pairs is None:
            return one(image, probabilities_or_labels, **options)
        mask = options.pop("mask", None)
        one_each = isinstance(mask, list | tuple) or np.shape(mask)[:-2] == (len(pairs),)
        if options.get("unknown", "auto") == "auto" and not options.get("scribbles"):
            # One that holds only 0 and 255 is no mask if others hold more.
            maps = [values for _, values in pairs if values.dtype.kind in "iu"]
            options["unknown"] = None if mask_values(maps) == MASK else UNKNOWN
        return [
            one(each, values, mask=mask[k] if one_each else mask, **options)
            for k, (each, values) in enumerate(pairs)
        ]

    return cast(_OneOrSeveral[Options], refine_all)


@_or_several
def refine(
    image: Any,
    probabilities_or_labels: Any,
    *,
    model: DenseCRF | None = None,
    scale: float | str | None = None,
    spatial: Any = "auto",
    spatial_weight: float | str = "auto",
    bilateral: Any = "auto",
    bilateral_weight: float | str = "auto",
    algorithm: str | None = None,
    filter: str = "auto",
    max_iter: int | None = None,
    tol: float = 1e-3,
    threads: int | None = None,
    confidence: float = CONFIDENCE,
    unknown: int | str | None = "auto",
    n_labels: int | None = None,
    scribbles: bool = False,
    layout: str | None = None,
    logits: bool = False,
    mask: Any = None,
    spacing: Any = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> InferenceResult:
    """Refine a segmentation with a dense CRF.

    Parameters
    ----------
    image : (H, W) or (H, W, C) array of any numeric type, or a volume (Z, H, W[, C]); from NumPy,
        Pillow, torch (any device), xarray, zarr or dask. A nibabel image (X, Y, Z) is turned to
        (Z, H, W) and brings its `spacing`; so are the labels of the result: write them back as
        `nibabel.Nifti1Image(result.labels.T.astype("int16"), image.affine)`. Several images in a
        list, with a segmentation for each, give a list of results; so does an array (B, H, W, C)
        where it cannot be a volume, or holds bytes of colors and there is no `spacing`.
    probabilities_or_labels : floats (*grid, L) or (L, *grid) that sum to 1 over the labels, floats
        (*grid,) in [0, 1] for the foreground of two labels, or a label map of whole numbers
        (*grid,); of the same kinds as the image, a nibabel image only beside another, where it is
        brought to the orientation of the scan, and refused if its affine says that it lies
        elsewhere. The grid of floats may be coarser than the image's, by one factor within
        rounding: they are interpolated linearly in log space, and normalized.
    model : a `DenseCRF`, for instance a learned one, instead of two Potts terms:
    scale : what to multiply the widths in space of a `model` by; "auto" is the size of the image in
        those that it was learned from.
    spatial, spatial_weight : width in pixels and weight of the smoothness term; None drops it.
    bilateral, bilateral_weight : (pixels, color) widths and weight of the term that follows the
        image; None drops it. "auto", here and for the spatial term, suits the image, see
        `crfield.unary.defaults`: widths grow with its size, and in volumes they follow the
        thickness of what the segmentation shows. Where both weights are "auto" in a volume and a
        label of real extent would vanish, they are lowered, and inference begins again.
    confidence, unknown, n_labels : for label maps: the probability that a label is right, the value
        that marks pixels without one (None: there is none), and the number of labels if the map
        does not show them all. "auto" is 255, but None for a mask: maps that hold 0 and 255 and
        nothing else, all of them if there are several, with no more than two labels. A map of a
        single label comes back as it is.
    mask : boolean (*grid,); what the image and the segmentation hold elsewhere does not matter. For
        several images one for all, or one each.
    scribbles : whether the label map is a few painted pixels, certain, with `unknown` everywhere
        else: `unary_from_scribbles` then learns what labels look like from them.
    layout : "channels_last" or "channels_first", where the labels of floats are; None recognizes it
        by the shapes, or where they leave it open by what sums to 1.
    logits : whether floats are a network's scores before the softmax, or before the sigmoid if
        there is one per pixel. Those per label are recognized, and log-probabilities, if some are
        below -0.5.
    progress : whether to show a bar of the iterations.
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
    check_layout(layout)
    check_model(model)
    if not isinstance(scribbles, bool | np.bool_):
        raise InputError(
            f"scribbles must be True or False, got {shown(scribbles)}; pass the strokes themselves "
            "in the place of the labels."
        )
    values = _as_values(probabilities_or_labels, image)
    if image is not None:
        given, image = image, as_image(image)
        if spacing is None:
            spacing = image_spacing(given, min(image.ndim, 3))
    if model is not None and n_labels is None and values.dtype.kind != "f":
        n_labels = model.n_labels
    segmentation, values = read_segmentation(
        values, None if image is None else image.shape, layout=layout, logits=logits,
        scribbles=scribbles, confidence=confidence, unknown=unknown, n_labels=n_labels,
        likely_labels=None if model is None else model.n_labels, mask=mask,
    )
    grid = values.shape[:-1] if segmentation.kind == "probabilities" else values.shape
    spacing = observe(grid, spacing=spacing).spacing
    model = rescaled(model, scale, grid, spacing)
    terms = Terms(spatial, spatial_weight, bilateral, bilateral_weight)

    @functools.cache
    def look() -> Structure:
        return structure_of(segmentation, values, image, mask, spacing)

    crf = model_for(segmentation, model, terms, grid, spacing, look)
    check_room(crf, segmentation, values, image, mask)
    look_at_photo(crf, grid, image, mask)
    if scribbles:
        unary = scribble_costs(segmentation, values, image, mask, spacing=spacing, threads=threads)
    else:
        unary = segmentation.costs(values, mask)
    total = next(n for n in (max_iter, crf.max_iter, DEFAULT_MAX_ITER) if n is not None)
    guesses = model is None and terms.weights_are_open and len(grid) > 2 and not scribbles
    for share in VOLUME_SHARES if guesses else (1.0,):
        bar = shown_progress("iteration", total, callback) if progress else nullcontext(callback)
        with bar as told:
            result = _weakened(crf, share).infer(
                image, unary, algorithm=algorithm, filter=filter, max_iter=max_iter, tol=tol,
                threads=threads, mask=mask, spacing=spacing, callback=told,
            )
        if not guesses or not look().outlasts(result.labels):
            break
    return dataclasses.replace(result, label_ids=segmentation.ids)


def _as_values(segmentation: Any, image: Any) -> NDArray[Any]:
    """A segmentation as an array; in the orientation of the image, if both say how they lie."""
    if not isinstance(segmentation, np.ndarray) and is_spatial_image(segmentation):
        segmentation = beside_scan(segmentation, image)
    return as_array(segmentation, "probabilities_or_labels")


def _weakened(crf: DenseCRF, share: float) -> DenseCRF:
    """The model with weights of a share of what they are."""
    if share == 1.0:
        return crf
    return dataclasses.replace(
        crf, terms=[dataclasses.replace(term, weight=share * term.weight) for term in crf.terms]
    )


def check_room(
    crf: DenseCRF, segmentation: Segmentation, values: NDArray[Any], image: Any, mask: Any
) -> None:
    """Refuse a refinement of `values` (*grid[, L]) that does not fit with the costs that
    they become, before anything is taken for them.
    """
    n_labels = len(segmentation.ids)
    grid = values.shape[:-1] if segmentation.kind == "probabilities" else values.shape
    soft = values.dtype.kind == "f"
    dtype = working_dtype(values) if soft else np.dtype(np.float32)
    n = math.prod(grid)
    selected = n if mask is None else int(np.count_nonzero(as_array(mask, "mask")))
    costs = float(n) * n_labels * dtype.itemsize * (1 if crf.recalibration is None else 2)
    channels = 0 if image is None or n == 0 else math.prod(np.shape(image)) // n
    needed = inference_bytes(
        dtype, n_labels, len(crf.terms), selected, len(grid) + channels, on_grid=mask is None
    )
    refuse_inference(costs + needed, selected, n_labels)


def look_at_photo(crf: DenseCRF, grid: tuple[int, ...], image: Any, mask: Any) -> None:
    """Warn of a color picture, or a part of one, that looks normalized to zero mean. Volumes are so
    for good reasons, and widths in them follow their spread.
    """
    if image is None or len(grid) != 2 or image.shape != (*grid, 3):
        return
    if image.dtype.kind == "f":
        outside = outside_of(mask, grid)
        colors = image if outside is None else image[~outside]
        if (colors < 0).any():
            warn_of_normalized(colors, (term.kernel for term in crf.terms))


def check_layout(layout: Any) -> None:
    """Refuse what is neither a layout nor None."""
    if layout is not None:
        as_choice(layout, "layout", LAYOUTS)


def split_batch(
    image: Any, values: Any, spacing: Any, layout: str | None
) -> list[tuple[Any, NDArray[Any]]] | None:
    """Several images, each with its segmentation; None for one image, to which a volume belongs.

    image : a list or tuple of arrays or pictures, or an array (B, H, W[, C]), which is several
        images if only they fit, or if they fit as well as a volume and are bytes of colors.
    """
    if not _are_several(image):
        shape = getattr(image, "shape", ())
        is_scan = type(image) is not np.ndarray and is_spatial_image(image)
        if len(shape) not in (3, 4) or spacing is not None or is_scan:
            return None
        if not _are_several(values):
            values = as_array(values, "probabilities_or_labels")
            if not _is_batch(image, tuple(shape), values, layout):
                return None
    if len(image) != len(values):
        raise InputError(
            f"images must have one segmentation each, got {len(image)} images and {len(values)} "
            "segmentations; pass as many of both."
        )
    return [(one, _as_values(each, one)) for one, each in zip(image, values, strict=True)]


def _are_several(values: Any) -> bool:
    """Whether a list or tuple holds arrays or pictures, and not the numbers of one."""
    return isinstance(values, list | tuple) and len(values) > 0 and all(
        len(getattr(each, "shape", ())) > 1 or hasattr(each, "getexif") for each in values
    )


def _is_batch(image: Any, shape: Shape, values: NDArray[Any], layout: str | None) -> bool:
    """Whether an array of this shape is several images rather than a volume."""
    together, each = (
        _misfit(part, of, values.dtype.kind == "f", layout)
        for part, of in ((values.shape, shape), (values.shape[1:], shape[1:]))
    )
    if each == 2 or values.shape[0] != shape[0] or together < each:
        return False
    if each < together:
        return True
    if len(shape) < 4 or shape[-1] not in (3, 4):
        return False  # gray slices, as volumes have them
    if str(image.dtype).endswith("uint8"):
        return True
    raise InputError(
        f"an image of shape {shape} may be {shape[0]} images or a volume of as many slices; pass "
        "list(image) for images, or spacing=(1, 1, 1) for a volume."
    )


def _misfit(shape: Shape, image_shape: Shape, floats: bool, layout: str | None) -> int:
    """0 if a segmentation of this shape has the size of an image, 1 if it is coarser, else 2."""
    if not floats:
        return 0 if shape in (image_shape[:-1], image_shape) else 2
    if len(shape) < 2:
        return 2
    form = find_form(shape, image_shape, layout, None)
    return 2 if form is None else int(form.is_coarse)


def check_model(model: Any) -> None:
    """Refuse what is neither a model nor None."""
    if model is not None and not isinstance(model, DenseCRF):
        raise InputError(
            f"model must be a DenseCRF, got {shown(model)}; load files with DenseCRF.load."
        )


def rescaled(
    model: DenseCRF | None, scale: Any, grid: tuple[int, ...], spacing: Any
) -> DenseCRF | None:
    """A model for images whose sides are `scale` times as many pixels as those that it is for."""
    if scale is None:
        if model is not None and model.size is not None and model.terms:
            _look_at_size(model.size, image_size(grid, spacing))
        return model
    if model is None:
        raise InputError(
            "scale is for the widths of a model, got none; leave it out, the default widths "
            "grow with the image."
        )
    if not isinstance(scale, str):
        return model.rescaled(as_positive_number(scale, "scale"), len(grid))
    as_choice(scale, "scale", ("auto",))
    if model.size is None:
        raise InputError(
            'scale="auto" needs a model that knows the size of the images it was learned from, '
            "but this one does not; give a number instead."
        )
    return model.rescaled(image_size(grid, spacing) / model.size, len(grid))


def _look_at_size(learned: float, given: float) -> None:
    """Warn of an image of quite another size than those that a model was learned from."""
    if not 1 / _OTHER_SIZE <= given / learned <= _OTHER_SIZE:
        warn(
            f"the model was learned from images of about {learned:.3g} pixels, this one has "
            f'{given:.3g}; pass scale="auto" to bring its widths to that size, or scale=1.'
        )


def model_for(
    segmentation: Segmentation, model: DenseCRF | None, terms: Terms, grid: tuple[int, ...],
    spacing: Any = None, look: Callable[[], Structure] | None = None,
) -> DenseCRF:
    """The given model if it fits the labels, or two Potts terms, with defaults that suit the grid;
    `look` tells the structure of a volume.
    """
    n_labels = len(segmentation.ids)
    if model is None:
        if terms.are_open:
            structure = look() if look is not None and len(grid) > 2 else None
            terms = terms.filled(default_terms(segmentation.kind, grid, spacing, structure))
        return potts_model(n_labels, *terms)
    if model.n_labels != n_labels:
        raise InputError(
            f"the model has {model.n_labels} labels, the segmentation {n_labels}; "
            "use a model learned for these labels."
        )
    return model


def structure_of(
    segmentation: Segmentation, values: NDArray[Any], image: Any, mask: Any = None,
    spacing: Any = None,
) -> Structure:
    """What the segmentation of a whole volume shows, with the spread in the units of kernels."""
    labels = segmentation.likeliest(values, mask)
    found = measure([(labels, image)], len(segmentation.ids), spacing)
    scale = 1.0 if image is None else observe(labels.shape, image, mask=mask).color_factor(None)
    return found._replace(spread=found.spread * scale)


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
