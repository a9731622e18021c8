"""Model files for the fuzzer: whole, damaged, and written by someone who means harm."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_calls import Call, require
from fuzz_values import Maker
from safetensors.numpy import load, save

from crfield import DenseCRF
from crfield.modelfile import _digest


def make_load(maker: Maker) -> Call:
    """DenseCRF.load of a file that was damaged, or written by someone who means harm."""
    gentle = Maker([int(maker.rng.integers(2**31))])
    gentle.hostile = False
    n_labels = gentle.count(1, 5)
    terms = [gentle.term(n_labels, 2, 3, {"f": 2}) for _ in range(gentle.count(0, 2))]
    handle, name = tempfile.mkstemp(suffix=".safetensors")
    os.close(handle)
    path = Path(name)
    try:
        DenseCRF(n_labels, terms).save(path)
        content = damaged(maker, path.read_bytes())
    finally:
        path.unlink()

    def load_file() -> DenseCRF:
        path.write_bytes(content)
        try:
            return DenseCRF.load(path)
        finally:
            path.unlink()

    return Call(
        load_file, lambda model: require(isinstance(model, DenseCRF), "no model"),
        {"bytes": hashlib.sha256(content).hexdigest(), "length": len(content)},
    )


def damaged(maker: Maker, content: bytes) -> bytes:
    """The file as it is, cut, with bytes changed, or with a false description and a right sum."""
    kind = maker.pick(["whole", "cut", "bytes", "more", "false"]) if maker.hostile else "whole"
    if kind == "cut":
        return content[: maker.count(0, len(content))]
    if kind == "more":
        return content + maker.rng.bytes(maker.count(1, 40))
    if kind == "bytes":
        changed = bytearray(content)
        for _ in range(maker.count(1, 4)):
            changed[maker.count(0, len(changed) - 1)] = maker.count(0, 255)
        return bytes(changed)
    return falsified(maker, content) if kind == "false" else content


def falsified(maker: Maker, content: bytes) -> bytes:
    """Something wrong in the description or the tensors, under a checksum that fits it."""
    tensors = load(content)
    length = int.from_bytes(content[:8], "little")
    document = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["crfield"])
    wrong: Any = maker.pick([None, -1, 1e400, "x", [], {}, [[]], {"tensor": "none"}, True, 10**30])
    model = document["model"]
    places: list[Any] = [model]
    while places and isinstance(places[-1], dict | list) and places[-1]:
        inner = places[-1]
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = maker.pick(keys)
        if maker.chance(0.4) or not isinstance(inner[key], dict | list):
            inner[key] = wrong
            break
        places.append(inner[key])
    if tensors and maker.chance(0.4):
        name = maker.pick(sorted(tensors))
        tensors[name] = maker.pick([
            np.full_like(tensors[name], np.nan), tensors[name].astype(np.float16), np.zeros(0),
            np.full_like(tensors[name], -1.0), np.zeros((2, 3, 4)),
        ])
    document = {"model": model, "sha256": _digest(model, tensors)}
    return bytes(save(tensors, {"crfield": json.dumps(document)}))
