"""Model files: what was saved comes back bit by bit; anything else is refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    FeatureKernel,
    InputError,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
)
from crfield.dense.files import VERSION
from crfield.io import models
from refusal import refusal
from small_problem import FEATURES, IMAGE

RNG = np.random.default_rng(3)
UNARY = RNG.uniform(0, 3, (6, 7, 3))
COVARIANCE = np.array([[4.0, 1.0], [1.0, 9.0]])
WHOLE = np.diag([9.0, 9.0, 400.0, 500.0, 600.0]) + 0.1

KERNELS = {
    "spatial": Spatial(np.pi),
    "spatial vector": Spatial([1 / 3, 2.7]),
    "spatial matrix": Spatial(COVARIANCE),
    "tent": Spatial(2, shape="tent", normalization="none"),
    "sinc": Spatial(1.3, shape="sinc", normalization="none"),
    "after": Spatial(2, normalization="after"),
    "before": Spatial(2, normalization="before"),
    "bilateral": Bilateral(5.1, 20.3),
    "bilateral vectors": Bilateral([5, 6], [20, 30, 40]),
    "bilateral matrices": Bilateral(COVARIANCE, 100 * np.eye(3)),
    "bilateral whole": Bilateral(covariance=WHOLE),
    "lab": Bilateral(5, 9.7, color_space="lab", color_scale=0.1),
    "features": FeatureKernel("f", 2),
    "features scaled": FeatureKernel("f", 2, sigma=[0.7, 1 / 7]),
    "features matrix": FeatureKernel("f", 2, covariance=COVARIANCE),
}
COMPATIBILITIES = {
    "potts": Potts(1 / 3),
    "diagonal": Diagonal([0.1, 1 / 3, 2]),
    "symmetric": Symmetric(np.array([[0, 1, 2], [1, 0, 0.7], [2, 0.7, -0.3]])),
    "l1": Symmetric.l1(3, 0.9),
}
FULL = DenseCRF(3, [
    Pairwise(Spatial([1 / 3, 2.7]), Potts(0.3), 0.7),
    Pairwise(Bilateral(covariance=WHOLE), COMPATIBILITIES["symmetric"]),
    Pairwise(FeatureKernel("f", 2), Diagonal([0.1, 1 / 3, 2]), 1e-3),
])


def infer(model):
    return model.infer(
        IMAGE, UNARY, features={"f": FEATURES}, algorithm="parallel", max_iter=3, tol=0
    )


def same(one, other):
    a, b = infer(one), infer(other)
    return (
        one.n_labels == other.n_labels
        and np.array_equal(a.marginals, b.marginals)
        and np.array_equal(a.free_energies, b.free_energies)
    )


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    FULL.save(path)
    return path


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_round_trip_gives_bit_equal_inference(kernel, compatibility, tmp_path):
    term = Pairwise(KERNELS[kernel], COMPATIBILITIES[compatibility], 1 / 7)
    model = DenseCRF(3, [term])
    path = tmp_path / "model.safetensors"
    model.save(str(path))
    loaded = DenseCRF.load(path)
    assert same(model, loaded)
    for part in ("kernel", "compatibility"):
        before, after = getattr(term, part), getattr(loaded.terms[0], part)
        assert type(before) is type(after)
        for name, value in vars(before).items():
            restored = vars(after)[name]
            assert type(value) is type(restored)
            assert np.array_equal(value, restored)


def test_models_of_many_and_no_terms_come_back(saved, tmp_path):
    assert same(FULL, DenseCRF.load(saved))
    empty = tmp_path / "empty.safetensors"
    DenseCRF(7).save(empty)
    assert DenseCRF.load(empty).n_labels == 7
    assert DenseCRF.load(empty).terms == ()


def test_a_model_infers_as_it_was_learned_to(tmp_path):
    path = tmp_path / "model.safetensors"
    terms = [Pairwise(Spatial(2), Potts(1.0))]
    DenseCRF(3, terms, algorithm="cccp", max_iter=2, size=320.5).save(path)
    model = DenseCRF.load(path)
    assert (model.algorithm, model.max_iter, model.size) == ("cccp", 2, 320.5)
    plain = DenseCRF(3, terms)
    for asked in ({}, {"max_iter": 4}, {"algorithm": "parallel"}):
        found = model.infer(IMAGE, UNARY, tol=0, **asked)
        expected = plain.infer(
            IMAGE, UNARY, tol=0, **({"algorithm": "cccp", "max_iter": 2} | asked)
        )
        np.testing.assert_array_equal(found.marginals, expected.marginals)
        assert found.n_iter == asked.get("max_iter", 2)
    assert plain.infer(IMAGE, UNARY, tol=0).n_iter == 10


def test_files_of_earlier_versions_are_read(saved):
    def as_before(content, tensors):
        content["version"] = 2
        del content["algorithm"], content["max_iter"]

    rewrite(saved, as_before)
    model = DenseCRF.load(saved)
    assert same(FULL, model)
    assert model.algorithm is None
    assert model.max_iter is None


def test_truncated_files_are_refused(saved):
    data = saved.read_bytes()
    for length in np.unique(np.linspace(1, len(data) - 1, 45).astype(int)):
        saved.write_bytes(data[:length])
        assert "damaged" in refusal(DenseCRF.load, saved)
    saved.write_bytes(data + b"\0")
    assert "damaged" in refusal(DenseCRF.load, saved)


@pytest.mark.parametrize("flip", [0x01, 0x10, 0x80, 0xFF])
def test_flipped_bytes_never_make_another_model(flip, saved):
    data = bytearray(saved.read_bytes())
    positions = np.unique(np.r_[:12, np.linspace(0, len(data) - 1, 150).astype(int)])
    for position in positions:
        data[position] ^= flip
        saved.write_bytes(data)
        data[position] ^= flip
        try:
            model = DenseCRF.load(saved)
        except InputError:
            continue
        assert same(model, FULL), position


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "random.safetensors"
    path.write_bytes(data)
    refusal(DenseCRF.load, path)


def test_what_is_no_model_file(tmp_path):
    path = tmp_path / "x.safetensors"
    assert "no such file" in refusal(DenseCRF.load, path)
    assert "embedded null" in refusal(DenseCRF.load, "a\0b")  # "byte" or "character" follows
    assert "folder" in refusal(DenseCRF.load, tmp_path)
    for wrong in (None, 3, ["x"]):
        assert "path" in refusal(DenseCRF.load, wrong)
    for content, words in (
        (b"", "damaged"), (b"\x89PNG\r\n\x1a\n" + bytes(100), "damaged"),
        (b"\xff" * 8 + b"{}", "damaged"),
        (save_tensors({"weight": np.ones(3)}), "not a crfield model"),
        (save_tensors({"weight": np.ones(3)}, {"other": "thing"}), "not a crfield model"),
    ):
        path.write_bytes(content)
        assert words in refusal(DenseCRF.load, path)


def rewrite(path, change):
    """The file with another description and a checksum that fits it."""
    data = path.read_bytes()
    tensors = load_tensors(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    content = json.loads(header["__metadata__"]["crfield"])
    document = change(content["model"], tensors)
    if not isinstance(document, str):
        content["sha256"] = models._digest(content["model"], tensors)
        document = json.dumps(content)
    path.write_bytes(save_tensors(tensors, {"crfield": document}))


def test_the_same_model_gives_the_same_bytes(saved, tmp_path):
    for _ in range(5):
        DenseCRF.load(saved).save(tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()


def put(*keys, value):
    def change(content, tensors):
        target = content
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


CRAFTED = {
    "newer": (put("version", value=VERSION + 1), "upgrade crfield"),
    "much newer": (put("version", value=10**30), "upgrade crfield"),
    "endless version": (lambda c, t: '{"format": "crfield.DenseCRF", "version": 1e999}', "damaged"),
    "worded version": (put("version", value="two"), "damaged"),
    "no version": (put("version", value=None), "damaged"),
    "another class": (put("format", value="crfield.ChainCRF"), "ChainCRF"),
    "no JSON": (lambda c, t: "}{", "damaged"),
    "no object": (lambda c, t: "[]", "damaged"),
    "deep": (lambda c, t: "[" * 200_000, "damaged"),
    "no terms": (lambda c, t: c.pop("terms"), "damaged"),
    "terms are a number": (put("terms", value=3), "damaged"),
    "a term is a number": (put("terms", 0, value=3), "damaged"),
    "unknown kernel": (put("terms", 0, "kernel", "kind", value="box"), "damaged"),
    "kernel kind is a list": (put("terms", 0, "kernel", "kind", value=[]), "damaged"),
    "no kernel kind": (lambda c, t: c["terms"][0]["kernel"].pop("kind"), "damaged"),
    "unknown field": (put("terms", 0, "kernel", "color", value=1), "damaged"),
    "missing tensor": (put("terms", 0, "kernel", "sigma", value={"tensor": "x"}), "damaged"),
    "no tensor name": (put("terms", 0, "kernel", "sigma", value={}), "damaged"),
    "kernel is text": (put("terms", 0, "kernel", value="spatial"), "damaged"),
    "weight is text": (put("terms", 0, "weight", value="heavy"), "weight"),
    "weight is nan": (put("terms", 0, "weight", value=float("nan")), "weight"),
    "fewer labels": (put("n_labels", value=2), "(2, 2)"),
    "no labels": (put("n_labels", value=None), "n_labels"),
    "unknown algorithm": (put("algorithm", value="magic"), "algorithm"),
    "iterations below zero": (put("max_iter", value=-1), "max_iter"),
    "iterations are text": (put("max_iter", value="many"), "max_iter"),
    "shape unknown": (put("terms", 0, "kernel", "shape", value="box"), "shape"),
    "sigma not positive": (
        lambda c, t: t["terms.0.kernel.sigma"].__setitem__(0, -1.0), "sigma",
    ),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_files_with_a_fitting_checksum_are_refused(case, saved):
    change, words = CRAFTED[case]
    rewrite(saved, change)
    message = refusal(DenseCRF.load, saved)
    assert words in message


def test_rewriting_without_a_change_still_loads(saved):
    rewrite(saved, lambda content, tensors: None)
    assert same(DenseCRF.load(saved), FULL)


def test_paths_that_cannot_be_written(tmp_path):
    file = tmp_path / "file.txt"
    file.write_text("text")
    for path in (
        file / "model.safetensors", tmp_path / "missing" / "model.safetensors", tmp_path,
        tmp_path / ("x" * 300), f"{tmp_path}/a\0b", None, 3,
    ):
        refusal(FULL.save, path)
    assert file.read_text() == "text"
    assert os.listdir(tmp_path) == ["file.txt"]


@pytest.mark.parametrize(("step", "error"), [
    *((step, OSError(28, "No space left on device")) for step in ("write", "fsync", "replace")),
    ("fsync", KeyboardInterrupt()),
])
def test_a_failing_write_leaves_the_old_file_and_no_other(step, error, saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*_):
        raise error

    where = {"write": (Path, "write_bytes"), "fsync": (os, "fsync"), "replace": (Path, "replace")}
    with monkeypatch.context() as patch:
        patch.setattr(*where[step], fail)
        if isinstance(error, OSError):
            assert "no space left on device" in refusal(DenseCRF(9).save, saved)
        else:
            with pytest.raises(KeyboardInterrupt):
                DenseCRF(9).save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]
    DenseCRF(9).save(saved)
    assert DenseCRF.load(saved).n_labels == 9
    assert os.listdir(saved.parent) == [saved.name]
