"""Everything public at once: what is refused and how, what stays the same, what is untouched."""

import dataclasses
import enum
import inspect
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crfield
from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    FeatureKernel,
    Inference,
    InputError,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
    graphcut,
    graphs,
    metrics,
    patterns,
)
from crfield.compat.pydensecrf import utils
from crfield.learning import Parameters
from crfield.show import pictures
from public_names import exported, load

MODULES = (
    "crfield", "crfield.compat.pydensecrf.densecrf", "crfield.compat.pydensecrf.utils",
    "crfield.datasets", "crfield.estimators", "crfield.graphcut", "crfield.graphs",
    "crfield.learning", "crfield.learning.losses", "crfield.metrics", "crfield.nn",
    "crfield.patterns", "crfield.show.pictures", "crfield.patterns.variability",
)
RNG = np.random.default_rng(3)
GRID = (6, 7)
IMAGE = RNG.integers(0, 256, (*GRID, 3), dtype=np.uint8)
SOFT = RNG.dirichlet(np.ones(3), GRID).astype(np.float32)
UNARY = RNG.uniform(0, 3, (*GRID, 3)).astype(np.float32)
LABELS = RNG.integers(0, 3, GRID)
MODEL = DenseCRF(3, [Pairwise(Spatial(2), Potts(1)), Pairwise(Bilateral(4, 40), Potts(2))])
EDGES = np.array([[0, 1], [1, 2], [2, 3]])
GRAPH = graphs.FactorGraph(
    RNG.normal(size=(4, 3)), [graphs.TableFactors(EDGES, RNG.normal(size=(3, 3)))]
)
CHAINS = graphs.Chains(UNARY[0], np.eye(3))
SHAPES = patterns.PatternCRF(patterns.Patterns(RNG.normal(size=(12, 2)), np.zeros(2)), grid=(3, 4))
INPUTS = patterns.PatternInputs(RNG.normal(size=(2, 3, 4, 2)))
# A right call of every function that computes something from arrays.
CALLS = {
    "refine": (crfield.refine, {"image": IMAGE, "probabilities_or_labels": SOFT, "max_iter": 2}),
    "infer": (MODEL.infer, {"image": IMAGE, "unary": UNARY, "max_iter": 2, "tol": 0.0}),
    "energy": (MODEL.energy, {"image": IMAGE, "labels": LABELS, "unary": UNARY}),
    "unary_from_labels": (crfield.unary_from_labels, {"labels": LABELS, "n_labels": 3}),
    "unary_from_probabilities": (crfield.unary_from_probabilities, {"probabilities": SOFT}),
    "unary_from_logits": (crfield.unary_from_logits, {"logits": UNARY}),
    "unary_from_features": (
        crfield.unary_from_features, {"features": UNARY, "weights": np.eye(3)}),
    "graphs.infer": (graphs.infer, {"problem": GRAPH, "temperature": 1.0, "max_iter": 5}),
    "graphs.k_best": (graphs.k_best, {"problem": GRAPH, "k": 3}),
    "graphs.sample": (graphs.sample, {"problem": GRAPH, "n_samples": 2, "seed": 1}),
    "Chains": (graphs.Chains, {"costs": UNARY[0], "transitions": np.eye(3)}),
    "infer chains": (graphs.infer, {"problem": CHAINS, "temperature": 1.0}),
    "best of chains": (graphs.best, {"problem": CHAINS}),
    "k_best of chains": (graphs.k_best, {"problem": CHAINS, "k": 2}),
    "sample chains": (graphs.sample, {"problem": CHAINS, "seed": 1}),
    "chain_loss": (graphs.chain_loss, {
        "costs": UNARY[0], "transitions": np.eye(3), "labels": LABELS[0]}),
    "distance_transform": (
        graphs.distance_transform, {"costs": UNARY[..., 0], "weights": np.array([1.0, 0.5])}),
    "ray_messages": (graphs.ray_messages, {"incoming": SOFT[0, :, :2], "scores": UNARY[0, :, 0]}),
    "max_flow": (graphcut.max_flow, {
        "n_nodes": 4, "edges": EDGES, "capacities": np.ones(3), "source": 0, "sink": 3}),
    "minimize_binary": (graphcut.minimize_binary, {
        "unary": UNARY[0, :4, :2], "edges": EDGES, "pairwise": np.ones(3)}),
    "cut_grids": (graphcut.cut_grids, {
        "costs": UNARY[None, ..., 0] - 1, "weights": np.ones((1, 2, *GRID), np.float32)}),
    "alpha_expansion": (graphcut.alpha_expansion, {
        "unary": UNARY[0, :4], "edges": EDGES, "weights": np.ones(3)}),
    "alpha_expansion_grid": (graphcut.alpha_expansion_grid, {
        "unary": UNARY, "weights": np.ones((2, *GRID), np.float32)}),
    "contrast_weights": (graphcut.contrast_weights, {"image": IMAGE, "neighbors": 4}),
    "patterns.infer": (patterns.infer, {"model": SHAPES, "inputs": INPUTS, "max_iter": 3}),
    "patterns.sample": (patterns.sample, {"model": SHAPES, "inputs": INPUTS, "n_passes": 1}),
    "mask_scores": (
        patterns.mask_scores, {"labels": LABELS[None] > 0, "masks": LABELS[None] > 1}),
    "confusion_matrix": (
        metrics.confusion_matrix, {"truth": LABELS, "predicted": LABELS, "n_labels": 3}),
    "mean_iou": (metrics.mean_iou, {"confusion": np.eye(3)}),
    "overlay": (pictures.overlay, {"image": IMAGE, "labels": LABELS, "alpha": 0.5}),
    "colorize": (pictures.colorize, {"labels": LABELS}),
    "entropy_map": (pictures.entropy_map, {"marginals": SOFT}),
    "unary_from_softmax": (utils.unary_from_softmax, {"sm": np.moveaxis(SOFT, -1, 0)}),
}
NOT_ARRAYS = ("x", b"x", object(), {1}, [[1.0], [1.0, 2.0]], np.array(["x"]), 1j)
NOT_NUMBERS = ("3", b"3", object(), {}, float("nan"), float("inf"), -1, [1, 2], 1j)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_exist_and_explain_themselves(module):
    for name, value in exported(load(module)):
        assert inspect.getdoc(value), f"{module}.{name}"
        if dataclasses.is_dataclass(value) and isinstance(value, type):
            changes = hasattr(value, "fit") or name.endswith("Report")
            assert value.__dataclass_params__.frozen is not changes, name


def one_sentence(error):
    message = str(error)
    assert message.strip(), repr(error)
    assert "\n" not in message
    assert len(message) < 500
    if isinstance(error, InputError):
        assert message.endswith(".")
        assert "; " in message, "a remedy follows the semicolon"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("wrong", NOT_ARRAYS, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("module", [name for name in MODULES if name != "crfield.learning.losses"])
def test_arguments_of_no_use_get_a_sentence(module, wrong):
    """Every public function and class, called with things that are nothing to it."""
    failures = []
    for name, value in exported(load(module)):
        needed = needed_arguments(value)
        if not needed:
            continue
        try:
            value(**dict.fromkeys(needed, wrong))
        except (InputError, TypeError, AttributeError) as error:
            one_sentence(error)
        except Exception as error:
            failures.append(f"{name}: {error!r}")
    assert not failures


def needed_arguments(value):
    """Names of the arguments without defaults, of what is called by users."""
    if not callable(value) or dataclasses.is_dataclass(value) or inspect.isabstract(value) or (
        (isinstance(value, type) and issubclass(value, Exception | tuple | enum.Enum))
        or getattr(value, "_is_protocol", False)
    ):
        return []
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return []
    return [
        p.name for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=20)
@given(data=st.data())
def test_one_wrong_argument_is_refused_or_answered(name, data):
    function, arguments = CALLS[name]
    key = data.draw(st.sampled_from(sorted(arguments)), "argument")
    value = arguments[key]
    if isinstance(value, np.ndarray):
        kind = data.draw(st.sampled_from(["nan", "shape", "other", "empty"]), "kind")
        wrong = value
        if kind == "nan" and value.dtype.kind == "f":
            wrong = value.copy()
            wrong.flat[data.draw(st.integers(0, wrong.size - 1), "where")] = np.nan
        elif kind == "shape":
            wrong = data.draw(st.sampled_from([value[None], value[..., None], value[:-1]]), "form")
        elif kind == "empty":
            wrong = value[:0]
        elif kind == "other":
            wrong = data.draw(st.sampled_from(NOT_ARRAYS), "wrong")
    else:
        others = NOT_NUMBERS if isinstance(value, int | float) else NOT_ARRAYS
        wrong = data.draw(st.sampled_from(others), "wrong")
    try:
        result = function(**{**arguments, key: wrong})
    except InputError as error:
        one_sentence(error)
    else:
        for array in arrays_of(result):
            assert not np.isnan(array).any()


def arrays_of(result):
    """The float arrays of a result."""
    if isinstance(result, np.ndarray):
        return [result] if result.dtype.kind == "f" else []
    if isinstance(result, list | tuple):
        return [array for part in result for array in arrays_of(part)]
    if dataclasses.is_dataclass(result):
        parts = [getattr(result, field.name) for field in dataclasses.fields(result)]
        return [array for part in parts if not dataclasses.is_dataclass(part)
                for array in arrays_of(part)]
    return []


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple):
        return all(map(same, one, other))
    if isinstance(one, graphs.Chains):
        return all(map(same, one.arguments, other.arguments))
    if dataclasses.is_dataclass(one):
        return all(map(same, arrays_of(one), arrays_of(other)))
    return np.array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("name", CALLS)
def test_same_bits_again_inputs_untouched_views_equal_copies(name):
    function, arguments = CALLS[name]
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    for value in copies.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    first, second = function(**copies), function(**copies)
    assert same(first, second)
    views = {k: strided(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    assert same(first, function(**views))
    for key, value in copies.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, arguments[key])


def strided(array):
    """The same numbers, every second place of a larger array."""
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", [
    "graphs.infer", "infer chains", "best of chains", "sample chains", "distance_transform",
    "cut_grids", "patterns.infer", "patterns.sample"])
def test_what_is_said_not_to_depend_on_threads_does_not(name, threads):
    function, arguments = CALLS[name]
    assert same(function(**arguments, threads=threads), function(**arguments, threads=1))


grids = st.tuples(st.integers(1, 7), st.integers(1, 7))


@settings(max_examples=25)
@given(grid=grids, n_labels=st.integers(2, 4), seed=st.integers(0, 999),
       algorithm=st.sampled_from(["concave", "cccp", "parallel"]))
def test_invariances_of_inference(grid, n_labels, seed, algorithm):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (*grid, 3), dtype=np.uint8)
    unary = rng.uniform(0, 3, (*grid, n_labels))
    crf = DenseCRF(n_labels, [Pairwise(Spatial(2), Potts(1)), Pairwise(Bilateral(4, 40), Potts(2))])

    def infer(image, unary):
        return crf.infer(
            image, unary, filter="exact", max_iter=3, tol=0, threads=1, algorithm=algorithm
        ).marginals

    q = infer(image, unary)
    np.testing.assert_allclose(q.sum(-1), 1, atol=1e-9)
    order = rng.permutation(n_labels)
    np.testing.assert_allclose(infer(image, unary[..., order]), q[..., order], atol=1e-9)
    shift = rng.normal(0, 5, (*grid, 1))
    np.testing.assert_allclose(infer(image, unary + shift), q, atol=1e-8)
    turned = infer(image.transpose(1, 0, 2), unary.transpose(1, 0, 2))
    np.testing.assert_allclose(turned.transpose(1, 0, 2), q, atol=1e-9)
    np.testing.assert_allclose(infer(image[::-1], unary[::-1])[::-1], q, atol=1e-9)
    np.testing.assert_allclose(infer(image, unary.astype(np.float32)), q, atol=1e-4)
    np.testing.assert_allclose(infer(image.astype(np.float64), unary), q, atol=1e-9)


@settings(max_examples=25)
@given(grid=grids, seed=st.integers(0, 999), offset=st.integers(-5, 200))
def test_invariances_of_refine(grid, seed, offset):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (*grid, 3), dtype=np.uint8)
    soft = rng.dirichlet(np.ones(3), grid)
    options = {"max_iter": 2, "threads": 1, "filter": "exact"}
    result = crfield.refine(image, soft, **options)
    np.testing.assert_allclose(result.marginals.sum(-1), 1, atol=1e-5)
    assert np.isfinite(result.free_energies).all()
    first = crfield.refine(image, np.moveaxis(soft, -1, 0), layout="channels_first", **options)
    assert np.array_equal(first.marginals, result.marginals)
    labels = rng.integers(0, 3, grid)
    if len(np.unique(labels)) > 1:
        plain = crfield.refine(image, labels, unknown=None, **options)
        moved = crfield.refine(image, labels + offset, unknown=None, **options)
        assert np.array_equal(moved.labels, plain.labels + offset)


@settings(max_examples=25)
@given(n=st.integers(1, 6), n_states=st.integers(1, 4), seed=st.integers(0, 999))
def test_chains_graphs_and_trees_agree_and_are_normalized(n, n_states, seed):
    rng = np.random.default_rng(seed)
    costs, table = rng.normal(size=(n, n_states)), rng.normal(size=(n_states, n_states))
    edges = np.column_stack([np.arange(n - 1), np.arange(1, n)])
    graph = graphs.FactorGraph(costs, [graphs.TableFactors(edges, table)])
    chains = graphs.Chains(costs, table)
    chain, tree = graphs.infer(chains), graphs.infer(graph)
    np.testing.assert_allclose(chain.marginals.sum(1), 1, atol=1e-9)
    np.testing.assert_allclose(chain.marginals, tree.marginals, atol=1e-8)
    assert chain.log_partition[0] == pytest.approx(tree.log_partition)
    assert graphs.best(chains).energy[0] == pytest.approx(graphs.k_best(graph, 1).energies[0])


REPRS = [
    Spatial(2.5), Bilateral(4, 40), FeatureKernel("depth", 1, sigma=0.5), Potts(2),
    Diagonal([1.0, 2.0]), Symmetric.l1(3, 1.0), Pairwise(Spatial(3), Potts(1)), Inference(),
    MODEL, GRAPH, CHAINS, SHAPES, SHAPES.patterns, graphs.infer(GRAPH), INPUTS,
    crfield.refine(IMAGE, SOFT),
]


@pytest.mark.parametrize("thing", REPRS, ids=lambda thing: type(thing).__name__)
def test_reprs_name_what_they_show(thing):
    text = repr(thing)
    assert text.startswith(type(thing).__name__)
    assert "object at 0x" not in re.sub(r"Propagation object at 0x|Messages object at 0x", "", text)
    if isinstance(thing, Spatial | Bilateral | FeatureKernel | Potts | Pairwise | Inference):
        again = eval(text, {**vars(crfield), "Inference": Inference, "array": np.array})
        assert repr(again) == text


def test_models_fit_into_a_line():
    terms = [
        Pairwise(Bilateral(80, [13, 13, 9], normalization="none"), Symmetric(-np.eye(21)), 0.5),
        Pairwise(FeatureKernel("depth", 5, covariance=np.eye(5)), Diagonal(np.ones(21))),
    ]
    assert repr(crfield.DenseCRF(21, terms, max_iter=5)) == (
        "DenseCRF(21, (Pairwise(Bilateral(80, (13, 13, 9), normalization='none'), "
        "Symmetric(21 labels), weight=0.5), Pairwise(FeatureKernel('depth', 5, "
        "covariance=5 x 5 numbers), Diagonal(21 labels))), max_iter=5)"
    )


@pytest.mark.parametrize(
    "thing", [thing for thing in REPRS if dataclasses.is_dataclass(thing)],
    ids=lambda thing: type(thing).__name__,
)
def test_values_cannot_be_changed(thing):
    name = dataclasses.fields(thing)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(thing, name, None)


def test_vectors_of_parameters_are_turned_into_models_and_back():
    parameters = Parameters(MODEL, ("unary", "compatibility", "kernel"))
    built = parameters.build(parameters.start)
    assert repr(built.terms) == repr(MODEL.terms)
