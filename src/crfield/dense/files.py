"""The description of a dense CRF in a model file; `crfield.io.models` has the file itself."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crfield.dense.compatibility import COMPATIBILITIES, Compatibility
from crfield.dense.kernels import KERNELS, Kernel
from crfield.io.models import incomplete, read_document, write_document

if TYPE_CHECKING:
    from crfield.dense.model import DenseCRF

FORMAT = "crfield.DenseCRF"
VERSION = 4  # 2 added "context", 3 "algorithm" and "max_iter", 4 "size"

Tensors = dict[str, NDArray[np.float64]]


def save_model(path: str | os.PathLike[str], model: DenseCRF) -> None:
    """Write a model; the file appears whole or not at all."""
    write_document(path, *describe(model))


def describe(model: DenseCRF) -> tuple[dict[str, Any], Tensors]:
    """The description of a model, and the arrays that it names."""
    tensors: Tensors = {}
    entries = [
        {
            "kernel": _describe(term.kernel, f"terms.{number}.kernel", tensors),
            "compatibility": _describe(
                term.compatibility, f"terms.{number}.compatibility", tensors
            ),
            "weight": term.weight,
        }
        for number, term in enumerate(model.terms)
    ]
    description = {
        "format": FORMAT, "version": VERSION, "n_labels": model.n_labels, "terms": entries,
        "algorithm": model.algorithm, "max_iter": model.max_iter,
        "size": model.size,
    }
    if model.recalibration is not None:
        tensors["recalibration"] = model.recalibration
        description["recalibration"] = {"tensor": "recalibration"}
        description["context"] = list(model.context)
    return description, tensors


def load_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of the model that `save_model` wrote, and of its terms, by name."""
    description, tensors = read_document(path, FORMAT, VERSION)
    try:
        recalibration = description.get("recalibration")
        return {
            "n_labels": description["n_labels"],
            "terms": [
                {
                    "kernel": _restore(entry["kernel"], KERNELS, tensors),
                    "compatibility": _restore(entry["compatibility"], COMPATIBILITIES, tensors),
                    "weight": entry["weight"],
                }
                for entry in description["terms"]
            ],
            "recalibration": None if recalibration is None else tensors[recalibration["tensor"]],
            "context": description.get("context", []),
            "algorithm": description.get("algorithm"),
            "max_iter": description.get("max_iter"),
            "size": description.get("size"),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise incomplete(path, error) from None


def _describe(part: Kernel | Compatibility, prefix: str, tensors: Tensors) -> dict[str, Any]:
    """A JSON object for a kernel or compatibility; its arrays go to `tensors`."""
    entry: dict[str, Any] = {"kind": part.kind}
    for name in (field.name for field in dataclasses.fields(part)):
        value = getattr(part, name)
        if name in part.array_fields and value is not None:
            tensors[f"{prefix}.{name}"] = np.asarray(value, np.float64)
            value = {"tensor": f"{prefix}.{name}"}
        entry[name] = value
    return entry


def _restore(
    entry: dict[str, Any], known: dict[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> Any:
    arguments = {}
    for name, value in entry.items():
        if name == "kind":
            continue
        if isinstance(value, dict):
            array = tensors[value["tensor"]]
            value = float(array) if array.ndim == 0 else array
        arguments[name] = value
    return known[entry["kind"]](**arguments)
