"""Pattern models on disk, in the same kind of file as the dense ones."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError
from crfield.io.models import incomplete, read_document, write_document
from crfield.patterns.convolutional import ConvolutionalPatterns
from crfield.patterns.model import GridModel
from crfield.patterns.potential import PatternPotential, Patterns

VERSION = 1
KINDS: dict[str, type[PatternPotential]] = {
    "patterns": Patterns, "convolutional": ConvolutionalPatterns,
}

Model = TypeVar("Model", bound=GridModel)
Tensors = dict[str, NDArray[Any]]


def save(path: str | os.PathLike[str], model: GridModel) -> None:
    """Write a model; the file appears whole or not at all, and is the same for the same model."""
    write_document(path, *describe(model))


def describe(model: GridModel) -> tuple[dict[str, Any], Tensors]:
    """A model as JSON, and the tensors that it names."""
    tensors: Tensors = {}
    described = {field.name: getattr(model, field.name) for field in fields(model)}
    return {
        "format": _format(type(model)), "version": VERSION,
        **{name: _describe(value, name, tensors) for name, value in described.items()},
    }, tensors


def load(path: str | os.PathLike[str], kind: type[Model]) -> Model:
    """Read a model of the given class."""
    description, tensors = read_document(path, _format(kind), VERSION)
    try:
        return kind(
            **{field.name: _restore(description[field.name], tensors) for field in fields(kind)}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise incomplete(path, error) from None


def _format(kind: type[GridModel]) -> str:
    return f"crfield.{kind.__name__}"


def _describe(value: Any, name: str, tensors: Tensors) -> Any:
    """JSON for a field of a model or of its patterns; arrays go to `tensors`."""
    if isinstance(value, np.ndarray):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, PatternPotential):
        kind = next((word for word, known in KINDS.items() if type(value) is known), None)
        if kind is None:
            raise InputError(
                "patterns must be Patterns or ConvolutionalPatterns to be written to a file, got "
                f"{type(value).__name__}; make one of them from its parameters."
            )
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {
            "kind": kind, **{k: _describe(v, f"{name}.{k}", tensors) for k, v in parts.items()}
        }
    if isinstance(value, tuple | list):
        return [_describe(entry, f"{name}.{n}", tensors) for n, entry in enumerate(value)]
    return value


def _restore(value: Any, tensors: Tensors) -> Any:
    if isinstance(value, list):
        return tuple(_restore(entry, tensors) for entry in value)
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    arguments = {k: _restore(v, tensors) for k, v in value.items() if k != "kind"}
    return KINDS[value["kind"]](**arguments)
