"""Models on disk: safetensors for the numbers, JSON for the structure, nothing that executes.

The file's metadata holds one JSON document (`crfield`): a description of the model that names the
tensors it refers to, and a SHA-256 of the description and all tensors, so that a file that was
truncated or altered is refused. The same model gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.atomic import atomic_path
from crfield._core.validate import (
    InputError,
    as_path,
)
from crfield.dense.compatibility import COMPATIBILITIES, Compatibility
from crfield.dense.kernels import KERNELS, Kernel

FORMAT = "crfield.DenseCRF"
VERSION = 3  # 2 added "context", 3 "algorithm" and "max_iter"

Tensors = dict[str, NDArray[np.float64]]
TermParts = tuple[Kernel, Compatibility, float]


def save_model(
    path: str | os.PathLike[str], n_labels: int, terms: Iterable[TermParts],
    recalibration: NDArray[np.float64] | None, context: Iterable[str] = (),
    algorithm: str | None = None, max_iter: int | None = None,
) -> None:
    """Write a model; the file appears whole or not at all."""
    tensors: Tensors = {}
    entries = [
        {
            "kernel": _describe(kernel, f"terms.{number}.kernel", tensors),
            "compatibility": _describe(compatibility, f"terms.{number}.compatibility", tensors),
            "weight": weight,
        }
        for number, (kernel, compatibility, weight) in enumerate(terms)
    ]
    model = {
        "format": FORMAT, "version": VERSION, "n_labels": n_labels, "terms": entries,
        "algorithm": algorithm, "max_iter": max_iter,
    }
    if recalibration is not None:
        tensors["recalibration"] = recalibration
        model["recalibration"] = {"tensor": "recalibration"}
        model["context"] = list(context)
    write_document(path, model, tensors)


def load_model(
    path: str | os.PathLike[str],
) -> tuple[int, list[TermParts], Any, list[str], str | None, int | None]:
    """Number of labels, terms, recalibration and its context, algorithm and iterations, as
    `save_model` wrote them."""
    model, tensors = read_document(path, FORMAT, VERSION)
    try:
        terms = [
            (
                _restore(entry["kernel"], KERNELS, tensors),
                _restore(entry["compatibility"], COMPATIBILITIES, tensors),
                entry["weight"],
            )
            for entry in model["terms"]
        ]
        matrix = model.get("recalibration")
        recalibration = None if matrix is None else tensors[matrix["tensor"]]
        return (
            model["n_labels"], terms, recalibration, model.get("context", []),
            model.get("algorithm"), model.get("max_iter"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise incomplete(path, error) from None


def write_document(
    path: str | os.PathLike[str], model: dict[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Write a description, with its "format" and "version", and the tensors that it names."""
    from safetensors.numpy import save

    # One key, because safetensors writes several in no fixed order.
    document = {"model": model, "sha256": _digest(model, tensors)}
    data = save(dict(tensors), {"crfield": json.dumps(document, sort_keys=True)})
    with atomic_path(as_path(path)) as temporary:
        temporary.write_bytes(data)


def read_document(
    path: str | os.PathLike[str], expected: str, newest: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The description and tensors of a file of format `expected`, at most version `newest`."""
    from safetensors import SafetensorError, safe_open

    path = as_path(path)
    if os.path.isdir(path):
        raise InputError(f"model file {path} is a folder; pass the file inside it.")
    if not os.path.isfile(path):
        raise InputError(f"model file {path} does not exist; check the path.")
    if not os.access(path, os.R_OK):
        raise InputError(f"cannot read model file {path}: permission denied; check its rights.")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise _damaged(path, f"it cannot be read as safetensors ({error})") from None
    document = metadata.get("crfield")
    if document is None:
        raise InputError(
            f"{path} is a safetensors file but not a crfield model; pass a file written by save()."
        )
    try:
        content = json.loads(document)
        model = content["model"]
        kind, version = model["format"], int(model["version"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise _damaged(path, "its description is not valid") from None
    if kind != expected:
        raise InputError(f"{path} holds a {kind}, expected {expected}; load it with its own class.")
    if version > newest:
        raise InputError(
            f"{path} has format version {version}, this crfield reads up to {newest}; "
            "upgrade crfield to open it."
        )
    if content.get("sha256") != _digest(model, tensors):
        raise _damaged(path, "its checksum does not match its content")
    return model, tensors


def incomplete(path: str | os.PathLike[str], error: Exception) -> InputError:
    """The refusal for a description that lacks something."""
    return _damaged(path, f"its description is incomplete ({error!r})")


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


def _digest(model: dict[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(model, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _damaged(path: str | os.PathLike[str], reason: str) -> InputError:
    return InputError(
        f"model file {path} is damaged: {reason}; restore it from a copy or save the model again."
    )
