"""Random calls of `crfield.graphcut` and `crfield.patterns`."""

from typing import Any

import numpy as np

from crfield import graphcut, patterns
from tests.fuzz.calls import Call, require
from tests.fuzz.spoil import call, spoiled
from tests.fuzz.values import Maker


def make_cut(maker: Maker) -> Call:
    """Flows, cuts and moves on graphs and grids, and the weights for them."""
    rng = maker.rng
    kind = maker.pick(["flow", "binary", "grid", "grids", "moves", "moves grid", "weights"])
    whole = maker.chance(0.4)

    def numbers(shape: tuple[int, ...], low: float = 0.0) -> Any:
        values = rng.uniform(low, 5, shape)
        return np.round(values).astype(np.int64) if whole else values.astype(
            maker.pick(["f8", "f4"]))

    n = maker.count(2, 8)
    edges = np.array([rng.choice(n, 2, replace=False) for _ in range(maker.count(0, 14))])
    edges = edges.reshape(-1, 2).astype(np.int64)
    grid = maker.pick([(3, 4), (1, 5), (2, 2, 3), (6, 1)])
    neighbors = maker.pick([4, 8]) if len(grid) == 2 else maker.pick([6, 26])
    if kind == "flow":
        given = {"n_nodes": n, "edges": edges, "capacities": numbers((len(edges),)),
                 "reverse_capacities": numbers((len(edges),)), "source": 0, "sink": n - 1}
        return call(maker, graphcut.max_flow, given)
    if kind == "binary":
        return call(maker, graphcut.minimize_binary, {
            "unary": numbers((n, 2), -5), "edges": edges, "pairwise": numbers((len(edges),))})
    if kind == "grid":
        return call(maker, graphcut.minimize_binary_grid, {
            "unary": numbers((*grid, 2), -5), "weights": numbers((neighbors // 2, *grid)),
            "neighbors": neighbors})
    if kind == "grids":
        batch = maker.count(1, 3)
        return call(maker, graphcut.cut_grids, {
            "costs": numbers((batch, *grid), -5),
            "weights": numbers((maker.pick([1, batch]), neighbors // 2, *grid)),
            "neighbors": neighbors, "threads": maker.count(1, 2)})
    labels = maker.count(1, 4)
    if kind == "weights":
        name = maker.pick(["contrast", "boundary", "constant"])
        given = {"neighbors": neighbors}
        given |= {
            "contrast": {"image": rng.integers(0, 256, (*grid, 3))},
            "boundary": {"boundary": rng.uniform(0, 1, grid)}, "constant": {"grid": grid},
        }[name]
        return call(maker, getattr(graphcut, f"{name}_weights"), given, _finite)
    swap = maker.chance(0.5)
    mu = None if maker.chance(0.5) else 1 - np.eye(labels)
    if kind == "moves":
        return call(
            maker, graphcut.alpha_beta_swap if swap else graphcut.alpha_expansion,
            {"unary": numbers((n, labels), -5), "edges": edges,
             "weights": numbers((len(edges),)), "compatibility": mu,
             "max_iter": maker.count(1, 9)}, _falling)
    return call(
        maker, graphcut.alpha_beta_swap_grid if swap else graphcut.alpha_expansion_grid,
        {"unary": numbers((*grid, labels), -5), "weights": numbers((neighbors // 2, *grid)),
         "compatibility": mu, "init": rng.integers(0, labels, grid)}, _falling)


def _finite(found: Any) -> None:
    require(np.isfinite(found).all(), "weights that are not finite")


def _falling(result: Any) -> None:
    energies = result.energies
    rise = np.diff(energies)
    require((rise <= 1e-5 * (1 + np.abs(energies[:-1]))).all(), f"energies that rise: {energies}")


def make_patterns(maker: Maker) -> Call:
    """Pattern models: inference, samples, relaxation, pre-training, learning, measures."""
    rng = maker.rng
    height, width, hidden, n = (maker.count(1, 4) for _ in range(4))
    size = height * width
    dtype = maker.pick(["f4", "f8"])
    potential = spoiled(maker, {
        "weights": rng.normal(size=(size, hidden)).astype(dtype), "bias": rng.normal(size=hidden),
        "composition": maker.pick(["sum", "min"]), "sparsity": float(rng.uniform(0, 1)),
        "temperature": maker.pick([1.0, 1.0, 0, 0.5]),
    }) if maker.chance(0.5) else {
        "weights": rng.normal(size=(size, hidden)), "bias": rng.normal(size=hidden)}
    costs = spoiled(maker, {"costs": rng.normal(size=(n, height, width, 2)).astype(dtype),
                            "pairwise": rng.uniform(0, 1, (1, 1, 2, height, width))})
    terms = spoiled(maker, {"grid": [height, width], "unary_weight": 1.0,
                            "visible_bias": 0.0, "pairwise_weights": np.array([0.5])})
    masks = spoiled(maker, {"masks": rng.integers(0, 2, (n, height, width)).astype(np.uint8)})
    kind = maker.pick(["infer", "infer", "sample", "relax", "pretrain", "learn", "scores",
                       "multi", "deviation", "energies"])
    options = spoiled(maker, {
        "infer": {"max_iter": maker.count(1, 5), "n_restarts": maker.count(0, 2), "seed": 1},
        "sample": {"n_chains": maker.count(1, 2), "n_passes": maker.count(0, 3), "seed": 2},
        "learn": {"n_epochs": 1, "n_chains": 2, "batch_size": 2, "step_size": 0.01,
                  "objective": "expected_loss", "loss": maker.pick(["iou", "hamming"])},
        "pretrain": {"n_hidden": hidden, "n_epochs": 1, "batch_size": 2, "step_size": 0.02,
                     "momentum": 0.5, "n_steps": 1, "smoothing": 1.0},
        "deviation": {"theta_0": 0.0, "theta_max": 2.0, "composition": "sum"},
    }.get(kind, {}))

    def run() -> Any:
        if kind == "pretrain":
            found = patterns.pretrain(**masks, **options)
            return [found.patterns.weights, found.visible_bias]
        if kind == "scores":
            return patterns.mask_scores(masks["masks"], rng_masks)
        if kind == "deviation":
            return patterns.DeviationPatterns(potential["weights"], **options).values(
                rng_masks.reshape(n, -1))
        model = patterns.PatternCRF(patterns.Patterns(**potential), **terms)
        inputs = patterns.PatternInputs(**costs)
        if kind == "multi":
            many = patterns.MultiLabelPatternCRF([None, patterns.Patterns(**potential)], **terms)
            return patterns.infer(many, inputs, threads=1).labels
        if kind == "infer":
            result = patterns.infer(model, inputs, threads=1, **options)
            return [result.labels, result.scores]
        if kind == "sample":
            return patterns.sample(model, inputs, threads=1, **options)
        if kind == "relax":
            relaxed = patterns.relax(model, inputs)
            return [relaxed.bounds, relaxed.visible]
        if kind == "energies":
            return model.energies(masks["masks"], inputs)
        result = patterns.learn_patterns(model, inputs, masks["masks"], threads=1, **options)
        return [result.model.patterns.weights, result.losses]

    rng_masks = rng.integers(0, 2, (n, height, width)).astype(np.uint8)

    def check(found: Any) -> None:
        for part in found if isinstance(found, list) else [found]:
            require(np.isfinite(part).all(), "numbers that are not finite")

    return Call(run, check, {**potential, **costs, **terms, **masks, **options, "kind": kind})
