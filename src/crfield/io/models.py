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
from crfield._core.files import read_regular
from crfield._core.validate import InputError, as_path, shown


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
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = as_path(path)
    # Not mapped into memory: a file that others cut short meanwhile would end the program.
    data = read_regular(path, "model", memory=4.0)
    try:
        # The tensors are checked by safetensors, which gives no metadata of bytes.
        tensors = {name: np.array(values) for name, values in load(data).items()}
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, f"it cannot be read as safetensors ({shown(error)})") from None
    document = metadata.get("crfield")
    if document is None:
        raise InputError(
            f"{shown(path)} is a safetensors file but not a crfield model; pass a file written by "
            "save()."
        )
    try:
        content = json.loads(document)
        model = content["model"]
        kind, version = model["format"], int(model["version"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise _damaged(path, "its description is not valid") from None
    if kind != expected:
        raise InputError(
            f"{shown(path)} holds a {shown(kind)}, expected {expected}; load it with its own class."
        )
    if version > newest:
        raise InputError(
            f"{shown(path)} has format version {shown(version)}, this crfield reads up to "
            f"{newest}; upgrade crfield to open it."
        )
    if content.get("sha256") != _digest(model, tensors):
        raise _damaged(path, "its checksum does not match its content")
    return model, tensors


def incomplete(path: str | os.PathLike[str], error: Exception) -> InputError:
    """The refusal for a description that lacks something."""
    return _damaged(path, f"its description is incomplete ({shown(repr(error))})")


def _digest(model: dict[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(model, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _damaged(path: str | os.PathLike[str], reason: str) -> InputError:
    return InputError(
        f"model file {shown(as_path(path))} is damaged: {reason}; restore it from a copy or save "
        "the model again."
    )
