"""What the page's sliders say, checked."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from crfield._core.validate import InputError, as_choice, as_count, as_within, shown
from crfield.app.limits import MAX_PAINTED_LABELS, Limits
from crfield.dense.meanfield import Inference
from crfield.dense.model import DEFAULT_MAX_ITER
from crfield.unary.costs import CONFIDENCE
from crfield.unary.defaults import (
    BILATERAL,
    BILATERAL_WEIGHT,
    PAINTING_MAX_ITER,
    SPATIAL,
    SPATIAL_WEIGHT,
    default_terms,
)
from crfield.unary.scribbles import COMPONENTS, MAX_COMPONENTS, NEARNESS, STRENGTH

SOURCES = ("scribbles", "initial")
ALGORITHMS = ("concave", "cccp", "parallel")
_LARGEST = 1e4  # of a width or a weight


@dataclass(frozen=True)
class Settings:
    """Where costs come from, the model's terms and how to infer.

    `spatial` and `bilateral` are None to leave a term out; `model` is the id of an uploaded model,
    whose terms then take their place.
    """

    n_labels: int = 2
    source: str = "scribbles"
    algorithm: str = "concave"
    max_iter: int = PAINTING_MAX_ITER
    tol: float = Inference.tol
    spatial: float | None = SPATIAL
    spatial_weight: float = SPATIAL_WEIGHT
    bilateral: tuple[float, float] | None = BILATERAL["scribbles"]
    bilateral_weight: float = BILATERAL_WEIGHT["scribbles"]
    components: int = COMPONENTS
    strength: float = STRENGTH
    nearness: float = NEARNESS
    confidence: float = CONFIDENCE
    model: str | None = None

    @classmethod
    def of_image(cls, grid: tuple[int, ...]) -> Settings:
        """The defaults for painting on an image of this size, with numbers that are short to read.
        """
        terms = default_terms("scribbles", grid)
        pixels, color = terms.bilateral
        return cls(
            spatial=float(f"{terms.spatial:.2g}"), bilateral=(float(f"{pixels:.2g}"), color)
        )

    @classmethod
    def of_segmentation(cls, kind: str, grid: tuple[int, ...]) -> Settings:
        """The defaults for a segmentation of this kind: exactly those of `refine`."""
        terms = default_terms(kind, grid)
        return cls(source="initial", max_iter=DEFAULT_MAX_ITER, **terms._asdict())

    @classmethod
    def from_json(cls, text: bytes, limits: Limits) -> Settings:
        """Settings of a request; what it does not name has its default."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError("settings must be JSON, got something else; send an object.") from None
        if not isinstance(values, dict):
            raise InputError(f"settings must be an object, got {shown(values)}; send one.")
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise InputError(
                f"settings must be among {', '.join(sorted(known))}, got {shown(unknown[0])}; "
                "leave it out."
            )
        return cls(**_checked(values, limits))


def _checked(values: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The values that were sent, each of its type and within its range."""
    checks = {
        "n_labels": lambda v: as_count(v, "n_labels", 2, MAX_PAINTED_LABELS),
        "source": lambda v: as_choice(v, "source", SOURCES),
        "algorithm": lambda v: as_choice(v, "algorithm", ALGORITHMS),
        "max_iter": lambda v: as_count(v, "max_iter", 0, limits.max_iter),
        "tol": lambda v: _number(v, "tol", 0.0, 1.0),
        "spatial": lambda v: None if v is None else _width(v, "spatial"),
        "spatial_weight": lambda v: _number(v, "spatial_weight", 0.0, _LARGEST),
        "bilateral": _pair,
        "bilateral_weight": lambda v: _number(v, "bilateral_weight", 0.0, _LARGEST),
        "components": lambda v: as_count(v, "components", 1, MAX_COMPONENTS),
        "strength": lambda v: _number(v, "strength", 0.0, 1.0),
        "nearness": lambda v: _number(v, "nearness", 0.0, 100.0),
        "confidence": lambda v: _number(v, "confidence", 0.01, 0.9999),
        "model": _identifier,
    }
    return {name: checks[name](value) for name, value in values.items()}


def _number(value: Any, name: str, low: float, high: float) -> float:
    if isinstance(value, bool):
        raise InputError(f"{name} must be a number, got {value}; send one.")
    return as_within(value, name, low, high, "choose one in that range")


def _width(value: Any, name: str) -> float:
    return _number(value, name, 0.1, _LARGEST)


def _pair(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(
            f"bilateral must be a pair of widths, got {shown(value)}; send [pixels, color]."
        )
    return _width(value[0], "bilateral"), _width(value[1], "bilateral")


def _identifier(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InputError(f"model must be an id or null, got {shown(value)}; send one of them.")
    return value
