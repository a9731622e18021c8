"""Models on disk: safetensors for the numbers, JSON for the structure, nothing that executes.

The file's metadata holds one JSON document (`crfield`): a description of the model that names the
tensors it refers to, and a SHA-256 of the description and all tensors, so that a file that was
truncated or altered is refused. The same model gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.atomic import atomic_path
from crfield._core.validate import InputError, as_path


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
