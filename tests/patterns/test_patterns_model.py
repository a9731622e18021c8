"""CRFs with patterns: energies by enumeration, inputs, files and what is refused."""

import subprocess
import sys

import numpy as np
import pytest

import pattern_reference as reference
from crfield.graphcut import boundary_weights, constant_weights, contrast_weights
from crfield.patterns import (
    ConvolutionalPatterns,
    MultiLabelPatternCRF,
    PatternCRF,
    PatternInputs,
    Patterns,
    infer,
)
from refusal import refusal

GRID = (2, 3)
N_VISIBLE = 6


def make_inputs(rng, n=4, *, n_labels=2, n_types=2, n_offsets=2, n_features=3, shared=False):
    return PatternInputs(
        rng.normal(size=(n, *GRID, n_labels)),
        rng.random((1 if shared else n, n_types, n_offsets, *GRID)),
        rng.normal(size=(n, n_features)),
    )


def make_patterns(rng, **options):
    return Patterns(
        rng.normal(size=(N_VISIBLE, 3)), rng.normal(size=3),
        image_weights=rng.normal(size=(3, 3)), **options,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0])
@pytest.mark.parametrize("n_offsets", [2, 4])
@pytest.mark.parametrize("shared", [False, True])
def test_energies_by_enumeration(temperature, n_offsets, shared):
    rng = np.random.default_rng(0)
    patterns = make_patterns(rng, temperature=temperature)
    inputs = make_inputs(rng, n_offsets=n_offsets, shared=shared)
    bias = rng.normal(size=N_VISIBLE)
    model = PatternCRF(
        patterns, unary_weight=0.7, pairwise_weights=[0.3, 1.2], visible_bias=bias, grid=GRID
    )
    for _ in range(5):
        y = rng.integers(0, 2, (4, *GRID))
        wanted = [reference.energy(model, inputs, n, y[n]) for n in range(4)]
        np.testing.assert_allclose(model.energies(y, inputs), wanted)
        np.testing.assert_allclose(model.energies(y.reshape(4, -1), inputs), wanted)
        np.testing.assert_allclose(model.log_scores(y, inputs), -np.array(wanted))
        # The pieces that learning and graph cuts work with.
        ones = model.label_costs(inputs).reshape(4, -1)
        cuts = 0.7 * inputs.costs[..., 0].sum((1, 2)) + (ones * y.reshape(4, -1)).sum(1)
        cuts += model.pairwise_costs(y, inputs) @ [0.3, 1.2]
        cuts += patterns.energies(y, inputs.features)
        np.testing.assert_allclose(cuts, wanted)
    weights = model.edge_weights(inputs)
    np.testing.assert_allclose(weights, 0.3 * inputs.pairwise[:, 0] + 1.2 * inputs.pairwise[:, 1])


def test_multi_label_energies_by_enumeration():
    rng = np.random.default_rng(1)
    inputs = make_inputs(rng, n_labels=3)
    sets = [None, make_patterns(rng), make_patterns(rng, composition="min", temperature=0)]
    bias = rng.normal(size=(3, N_VISIBLE))
    model = MultiLabelPatternCRF(
        sets, unary_weight=1.3, pairwise_weights=[1, 0.5], visible_bias=bias, grid=GRID
    )
    y = rng.integers(0, 3, (4, *GRID))
    wanted = []
    for n in range(4):
        total = reference.base_energy(y[n], inputs.costs[n], inputs.pairwise[n], 1.3, [1, 0.5])
        for label, patterns in enumerate(sets):
            mask = (y[n] == label).ravel()
            total -= bias[label] @ mask
            if patterns is not None:
                c = patterns.bias + inputs.features[n] @ patterns.image_weights
                total += reference.potential(
                    mask, patterns.weights, c, int(label == 1),
                    reference.hidden_states(3, patterns.composition),
                )
        wanted.append(total)
    np.testing.assert_allclose(model.energies(y, inputs), wanted)
    np.testing.assert_allclose(model.log_scores(y, inputs), -np.array(wanted))


def test_two_labels_are_the_binary_model():
    rng = np.random.default_rng(2)
    inputs, patterns = make_inputs(rng), make_patterns(rng)
    binary = PatternCRF(patterns, pairwise_weights=[1, 2], visible_bias=0.4, grid=GRID)
    bias = np.zeros((2, N_VISIBLE))
    bias[1] = 0.4
    several = MultiLabelPatternCRF(
        [None, patterns], pairwise_weights=[1, 2], visible_bias=bias, grid=GRID
    )
    y = rng.integers(0, 2, (4, *GRID))
    np.testing.assert_allclose(binary.energies(y, inputs), several.energies(y, inputs))
    np.testing.assert_array_equal(infer(binary, inputs).labels, infer(several, inputs).labels)
    np.testing.assert_allclose(
        binary.at_temperature(0).energies(y, inputs),
        several.at_temperature(0).energies(y, inputs),
    )


def test_the_model_without_patterns():
    rng = np.random.default_rng(3)
    inputs = make_inputs(rng)
    model = PatternCRF(make_patterns(rng), pairwise_weights=[1, 2], visible_bias=2, grid=GRID)
    base = model.pairwise_only()
    assert base.patterns is None
    assert not base.visible_bias.any()
    y = rng.integers(0, 2, (4, *GRID))
    np.testing.assert_allclose(base.energies(y, inputs), model.base_energies(y, inputs))
    assert model.at_temperature(0).patterns.temperature == 0
    assert base.at_temperature(0) is base
    no_pairs = PatternCRF(None, grid=GRID)
    costs = PatternInputs(inputs.costs)
    np.testing.assert_allclose(
        no_pairs.energies(y, costs),
        np.take_along_axis(inputs.costs, y[..., None], -1).sum((1, 2, 3)),
    )


def test_taking_some_images():
    rng = np.random.default_rng(4)
    inputs = make_inputs(rng)
    rows = [2, 0, 2]
    some = inputs.take(rows)
    assert len(some) == 3
    np.testing.assert_array_equal(some.costs, inputs.costs[rows])
    np.testing.assert_array_equal(some.pairwise, inputs.pairwise[rows])
    np.testing.assert_array_equal(some.features, inputs.features[rows])
    assert len(make_inputs(rng, shared=True).take(rows).pairwise) == 1
    assert PatternInputs(inputs.costs).take(rows).pairwise is None


@pytest.mark.parametrize("bad", [
    *({"costs": np.zeros(shape)} for shape in ((2, 3, 2), (0, 2, 3, 2), (4, 2, 3, 1))),
    *({"costs": np.full((4, 2, 3, 2), value)} for value in (np.nan, 1e35)),
    *({"pairwise": np.zeros(shape)}
      for shape in ((4, 2, 2, 3), (3, 1, 2, 2, 3), (4, 1, 3, 2, 3), (4, 1, 2, 3, 2))),
    *({"pairwise": np.full((4, 1, 2, 2, 3), value)} for value in (-0.1, np.nan)),
    {"features": np.zeros(4)}, {"features": np.zeros((3, 2))},
    {"features": np.full((4, 2), np.inf)},
])
def test_refused_inputs(bad):
    assert next(iter(bad)) in refusal(PatternInputs, **{"costs": np.zeros((4, 2, 3, 2)), **bad})


def test_refused_models():
    rng = np.random.default_rng(0)
    patterns = make_patterns(rng)
    assert "grid" in refusal(PatternCRF, patterns)
    for change in (
        {"patterns": "shapes"}, {"grid": (3, 3)}, {"grid": 6}, {"unary_weight": np.nan},
        {"pairwise_weights": [-1]}, {"pairwise_weights": 1.0}, {"visible_bias": [1, 2]},
    ):
        given = {"patterns": patterns, "grid": GRID} | change
        assert next(iter(change)) in refusal(PatternCRF, **given)
    window = ConvolutionalPatterns(np.zeros((2, 2, 1)), 0, GRID)
    assert PatternCRF(window).grid == GRID
    assert "grid" in refusal(PatternCRF, window, grid=(3, 2))
    for sets in (patterns, [patterns], [patterns, 3]):
        assert "patterns" in refusal(MultiLabelPatternCRF, sets, grid=GRID)
    other = Patterns(np.zeros((5, 1)), 0)
    assert "size" in refusal(MultiLabelPatternCRF, [patterns, other], grid=GRID)
    assert "visible_bias" in refusal(
        MultiLabelPatternCRF, [patterns, None], grid=GRID, visible_bias=[1, 2]
    )


def test_refused_use():
    rng = np.random.default_rng(0)
    inputs = make_inputs(rng)
    model = PatternCRF(make_patterns(rng), pairwise_weights=[1, 2], grid=GRID)
    y = np.zeros((4, *GRID), int)
    assert "inputs" in refusal(model.energies, y, inputs.costs)
    assert "types of pairwise" in refusal(model.energies, y, PatternInputs(inputs.costs))
    assert "grid" in refusal(model.energies, y, PatternInputs(np.zeros((4, 3, 2, 2))))
    assert "labels" in refusal(model.energies, y, make_inputs(rng, n_labels=3))
    assert "features" in refusal(model.energies, y, PatternInputs(inputs.costs, inputs.pairwise))
    for labels in (y[0], y[:2], y + 2, y - 1, y + 0.5, y * np.nan, "y"):
        assert "labels" in refusal(model.energies, labels, inputs)
    for options in (
        {"init": y[:1]}, {"init": y + 3}, {"max_iter": -1}, {"n_restarts": -1}, {"seed": -1},
        {"threads": 0},
    ):
        assert next(iter(options)).replace("init", "labels") in refusal(
            infer, model, inputs, **options
        )
    assert "model" in refusal(infer, None, inputs)


MODELS = {
    "dense": lambda rng: PatternCRF(
        make_patterns(rng, temperature=0.5, sparsity=0.1), unary_weight=1 / 3,
        pairwise_weights=[0.1, 2], visible_bias=rng.normal(size=N_VISIBLE), grid=GRID,
    ),
    "single precision": lambda rng: PatternCRF(
        Patterns(rng.normal(size=(N_VISIBLE, 2)).astype(np.float32), [1, 2], temperature=0,
                 max_active=1), grid=GRID,
    ),
    "convolutional": lambda rng: PatternCRF(
        ConvolutionalPatterns(rng.normal(size=(2, 2, 3)), 0.5, GRID, 1, composition="min"),
    ),
    "none": lambda rng: PatternCRF(None, grid=GRID, pairwise_weights=[3]),
    "several labels": lambda rng: MultiLabelPatternCRF(
        [None, make_patterns(rng), ConvolutionalPatterns(rng.normal(size=(2, 2, 3)), 0, GRID)],
        visible_bias=rng.normal(size=(3, N_VISIBLE)), pairwise_weights=[1],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_files(name, tmp_path):
    model = MODELS[name](np.random.default_rng(0))
    path = tmp_path / "model.safetensors"
    model.save(path)
    back = type(model).load(path)
    assert_same(back, model)
    back.save(tmp_path / "again.safetensors")
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.safetensors", "model.safetensors"]


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    elif isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif hasattr(wanted, "__dataclass_fields__"):
        for field in wanted.__dataclass_fields__:
            assert_same(getattr(found, field), getattr(wanted, field))
    else:
        assert found == wanted


def test_refused_files(tmp_path):
    path = tmp_path / "model.safetensors"
    assert "no such file" in refusal(PatternCRF.load, path)
    MODELS["dense"](np.random.default_rng(0)).save(path)
    assert "MultiLabelPatternCRF" in refusal(MultiLabelPatternCRF.load, path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert "checksum" in refusal(PatternCRF.load, path)
    path.write_bytes(data[:100])
    assert "damaged" in refusal(PatternCRF.load, path)
    assert "write" in refusal(
        MODELS["none"](np.random.default_rng(0)).save, tmp_path / "no" / "m.safetensors"
    )


def test_importing_is_light():
    code = (
        "import sys, crfield; assert 'crfield.patterns' not in sys.modules;"
        "import crfield.patterns; assert not {'scipy', 'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_inputs_from_images_have_a_type_for_each_kind():
    rng = np.random.default_rng(0)
    costs, images = rng.normal(size=(3, 4, 5, 2)), rng.random((3, 4, 5, 3))
    boundary = rng.random((3, 4, 5))
    inputs = PatternInputs.from_images(
        costs, images, kinds=("boundary", "constant", "contrast"), boundary=boundary, neighbors=8,
        features=np.ones((3, 2)),
    )
    assert inputs.pairwise.shape == (3, 3, 4, 4, 5)
    for n in range(3):
        expected = (
            boundary_weights(boundary[n], 8), constant_weights((4, 5), 8),
            contrast_weights(images[n], 8),
        )
        for found, wanted in zip(inputs.pairwise[n], expected, strict=True):
            assert np.allclose(found, wanted)
    assert PatternInputs.from_images(costs, None, kinds=()).pairwise is None
    assert "contrast" in refusal(PatternInputs.from_images, costs, images[:2])
    assert "leading axis" in refusal(PatternInputs.from_images, costs[0], images[0])
    assert "boundary" in refusal(PatternInputs.from_images, costs, images, kinds=["boundary"])
    assert "'contrast'" in refusal(PatternInputs.from_images, costs, images, kinds=["color"])
