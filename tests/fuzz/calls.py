"""Random calls of the public entry points, and what a right answer to each looks like."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import crfield
from crfield import DenseCRF, InferenceResult
from crfield.dense.filters import FILTERS, make_filter
from crfield.dense.meanfield import ALGORITHMS
from tests.fuzz.values import FLOAT_TYPES, WHOLE_TYPES, WRONG_ARRAYS, WRONG_COUNTS, Array, Maker

# What the library lets a free energy rise by, as a share of |F| + N log L.
ROUNDING = {"float32": 1e-6, "float64": 1e-12}


class Wrong(AssertionError):
    """An answer that is not what was asked for."""


@dataclass
class Call:
    """One call with arguments fixed: `run` may be repeated, `check` looks at what comes back."""

    run: Callable[[], Any]
    check: Callable[[Any], None]
    arguments: dict[str, Any]


def require(condition: Any, words: str) -> None:
    if not condition:
        raise Wrong(words)


def has_form(message: str) -> bool:
    """Whether a refusal is one sentence that ends in a remedy."""
    return "\n" not in message and len(message) <= 500 and "; " in message and message[-1] == "."


def check_sums(probabilities: Any, axes: Any = -1, what: str = "marginals") -> None:
    p = np.asarray(probabilities)
    require(np.isfinite(p).all() and (p >= -1e-6).all(), f"{what} that are no probabilities")
    off = float(np.abs(p.sum(axes, dtype=np.float64) - 1).max(initial=0.0))
    require(off <= 1e-4, f"{what} whose sums are off by {off:g}")


def check_marginals(result: InferenceResult, grid: tuple[int, ...], n_labels: int) -> None:
    """Probabilities of the right shape, finite free energies, labels among the ids."""
    q = result.marginals
    require(q.shape == (*grid, n_labels), f"marginals of a wrong shape: {q.shape}")
    require((q >= 0).all(), "marginals that are no probabilities")
    check_sums(q)
    energies = result.free_energies
    require(len(energies) == result.n_iter + 1, "as many free energies as iterations and one")
    require(np.isfinite(energies).all(), f"free energies that are not finite: {energies}")
    require(np.isin(result.labels, result.label_ids).all(), "labels that are no ids")


def check_descent(result: InferenceResult, unary: Any) -> None:
    """Free energies that do not rise beyond rounding."""
    q = result.marginals
    n, n_labels = q.size // q.shape[-1], q.shape[-1]
    # The free energy is computed for costs whose smallest is 0, then moved: that rounds as well.
    costs = np.asarray(unary, np.float64)
    # Outside of a mask they may be anything.
    moved = float(np.abs(costs).max(initial=0.0, where=np.isfinite(costs))) * n
    energies = result.free_energies
    scale = np.abs(energies[:-1]) + moved + n * math.log(max(n_labels, 2))
    rise = np.diff(energies) / scale
    allowed = 1.01 * ROUNDING[q.dtype.name] + 1e-14
    require((rise <= allowed).all(), f"free energies that rise: {energies}")


def make_infer(maker: Maker) -> Call:
    grid, n, n_labels = _sizes(maker)
    data, model = _data_and_model(maker, grid, n_labels)
    first = maker.chance(0.15)
    unary = maker.array((n_labels, *grid) if first else (*grid, n_labels),
                        FLOAT_TYPES if maker.chance(0.9) else WHOLE_TYPES)
    algorithm = maker.word(ALGORITHMS)
    if algorithm == "sequential" and n > 150:
        algorithm = "concave"
    options: dict[str, Any] = {
        **data, "algorithm": algorithm, "filter": maker.word(FILTERS),
        "filter_tol": maker.pick([0.0, 0.0, 1e-5, 0.01]), "max_iter": maker.count(0, 5),
        "tol": maker.pick([0.0, 1e-3, 1e-6]), "threads": maker.count(1, 3),
        "layout": "channels_first" if first else "channels_last",
        "check": not maker.chance(0.25),
    }
    if maker.chance(0.15):
        start = maker.rng.dirichlet(np.ones(n_labels), grid)
        options["init"] = maker.formed(np.moveaxis(start, -1, 0) if first else start)
    if maker.chance(0.1):
        options["callback"] = lambda iteration, q, energy: iteration == 2
    for name in options:
        if name != "check" and maker.odd(0.015):
            options[name] = maker.pick(WRONG_ARRAYS)
    image = options.pop("image")

    def check(result: InferenceResult) -> None:
        shape = np.shape(unary)  # not always the one that was meant
        check_marginals(result, shape[1:] if first else shape[:-1], n_labels)
        if options["check"] and options["algorithm"] in ("concave", "cccp"):
            check_descent(result, unary)

    return Call(
        lambda: model.infer(image, unary, **options), check,
        {"model": model, "image": image, "unary": unary, **options},
    )


def make_energy(maker: Maker) -> Call:
    grid, _, n_labels = _sizes(maker)
    data, model = _data_and_model(maker, grid, n_labels)
    labels = maker.formed(maker.rng.integers(0, n_labels + maker.odd(0.2), grid))
    unary, image = maker.array((*grid, n_labels)), data.pop("image")
    options = {**data, "filter": maker.word(FILTERS), "threads": maker.count(1, 3)}
    return Call(
        lambda: model.energy(image, labels, unary, **options),
        lambda energy: require(math.isfinite(energy), f"an energy of {energy}"),
        {"model": model, "image": image, "labels": labels, "unary": unary, **options},
    )


def make_refine(maker: Maker) -> Call:
    grid, _, n_labels = _sizes(maker)
    options: dict[str, Any] = {
        "algorithm": maker.pick(ALGORITHMS[:3]), "max_iter": maker.count(0, 4),
        "threads": maker.count(1, 3), "spatial": maker.pick([None, 3.0, maker.widths(len(grid))]),
        "bilateral": maker.pick([None, "auto", (maker.number(1, 90), maker.number(1, 90))]),
        "confidence": maker.pick([0.9, 0.5, 0.999]),
    }
    image = maker.image(grid)
    kind = maker.pick(["labels", "labels", "probabilities", "foreground"])
    if kind == "labels":
        ids = maker.rng.integers(0, n_labels, grid)
        if maker.chance(0.3):
            ids = ids * 7 - 3
        given = ids.astype(maker.pick(["i8", "i4", "i2"]))
    elif kind == "probabilities":
        given = maker.typed(maker.rng.dirichlet(np.ones(n_labels), grid))
    else:
        given = maker.typed(maker.rng.random(grid))
    if maker.odd(0.2):
        given = maker.array(given.shape)

    def check(result: InferenceResult | list[InferenceResult]) -> None:
        # How many labels depends on which of them occur and on the form of what was given; a volume
        # of bytes may be several images, and its last axis that of the colors.
        for each in result if isinstance(result, list) else [result]:
            *found, n_found = each.marginals.shape
            covered = (grid[1:],) if isinstance(result, list) else (grid, grid[:-1])
            check_marginals(each, tuple(found), n_found)
            require(tuple(found) in covered, f"marginals of a wrong shape: {each.marginals.shape}")

    return Call(
        lambda: crfield.refine(image, given, **options), check,
        {"image": image, "given": given, **options},
    )


def make_unary(maker: Maker) -> Call:
    """unary_from_labels, _probabilities, _logits and _features"""
    grid, _, n_labels = _sizes(maker)
    kind = maker.pick(["labels", "probabilities", "logits", "features"])
    shape = (*grid, n_labels)
    arguments: dict[str, Any]
    if kind == "labels":
        low, high = (-2, n_labels + 2) if maker.odd(0.3) else (0, n_labels)
        labels = maker.rng.integers(low, high, grid)
        if maker.chance(0.3):
            labels = np.where(maker.rng.random(grid) < 0.3, 255, labels)
        arguments = {
            "labels": maker.formed(labels), "confidence": maker.number(1e-3, 0.999),
            "n_labels": maker.pick(WRONG_COUNTS) if maker.odd(0.1) else n_labels,
        }
    elif kind == "probabilities":
        soft = maker.array(shape) if maker.odd(0.4) else maker.formed(
            maker.typed(maker.rng.dirichlet(np.ones(n_labels), grid)))
        arguments = {
            "probabilities": soft, "clip": maker.number(1e-9, 0.1), "scale": maker.number(0.1, 10),
        }
    elif kind == "logits":
        arguments = {"logits": maker.array(shape)}
    else:
        dim = maker.count(1, 5)
        arguments = {"features": maker.array((*grid, dim)), "weights": maker.array((n_labels, dim))}
    function = getattr(crfield, f"unary_from_{kind}")

    def check(costs: Any) -> None:
        require(np.isfinite(costs).all(), f"{kind}: costs that are not finite")
        require(costs.dtype in (np.float32, np.float64), f"{kind}: costs of {costs.dtype}")
        require(costs.shape[-1] == n_labels or maker.hostile, f"{kind}: costs of {costs.shape}")

    return Call(lambda: function(**arguments), check, {"kind": kind, **arguments})


def make_model(maker: Maker) -> Call:
    """Kernels, compatibilities, terms and models from random arguments."""
    n_labels: Any = maker.pick(WRONG_COUNTS) if maker.odd(0.2) else maker.count(1, 70)
    counted = n_labels if isinstance(n_labels, int) and 0 < n_labels < 71 else 3
    seed = int(maker.rng.integers(2**31))
    recalibration = maker.array((counted, counted + 1)) if maker.chance(0.2) else None

    def build() -> DenseCRF:
        own = Maker([seed])  # the same model every time
        own.hostile = maker.hostile
        terms = [own.term(counted, 2, 3, {"f": 2}) for _ in range(own.count(0, 3))]
        return DenseCRF(n_labels, terms, recalibration)

    return Call(
        build, lambda model: require(isinstance(model, DenseCRF), "no model"),
        {"n_labels": n_labels, "terms_seed": seed, "recalibration": recalibration},
    )


def make_operator(maker: Maker) -> Call:
    """make_filter(...), and what its operator gives for ordinary arrays."""
    n, dim = maker.count(1, 300), maker.count(1, 17)
    features = maker.array((n, dim), FLOAT_TYPES if maker.odd(0.5) else ("f4", "f8"))
    kernel: Any = maker.kernel(2, 0, {})
    if maker.odd(0.03):
        kernel = maker.pick([None, "gaussian", 3])
    options = {
        "filter": maker.word(FILTERS), "threads": maker.count(1, 3),
        "filter_tol": maker.number(1e-9, 0.9) if maker.chance(0.2) else 0.0,
    }
    n_columns, seed = maker.count(1, 9), int(maker.rng.integers(2**31))

    def run() -> list[Array]:
        operator = make_filter(features, kernel, **options)
        x, y = np.random.default_rng(seed).uniform(0, 1, (2, operator.n_variables, n_columns))
        x, y = x.astype(operator.dtype), y.astype(operator.dtype)
        found = [x, y, operator.apply(x), operator.apply_transpose(y), operator.diagonal()]
        if kernel.shape == "gaussian":
            gradient = operator.start_gradient()
            gradient.add(y, x, found[2], np.empty_like(x))
            gradient.add_diagonal(x[:, 0].copy())
            found.append(gradient.total())
        return found

    def check(arrays: list[Array]) -> None:
        require(all(np.isfinite(a).all() for a in arrays), "an operator that is not finite")
        x, y, filtered, transposed = (a.astype(np.float64) for a in arrays[:4])
        one, other = float((y * filtered).sum()), float((transposed * x).sum())
        scale = float((np.abs(y) * np.abs(filtered)).sum() + (np.abs(transposed) * x).sum())
        require(abs(one - other) <= 1e-4 * scale, f"K' is not K transposed: {one} and {other}")

    return Call(run, check, {"features": features, "kernel": kernel, **options})


def _sizes(maker: Maker) -> tuple[tuple[int, ...], int, int]:
    grid = maker.grid()
    n = math.prod(grid)
    return grid, n, maker.n_labels(n)


def _data_and_model(
    maker: Maker, grid: tuple[int, ...], n_labels: int
) -> tuple[dict[str, Any], DenseCRF]:
    """What a model looks at, and a model that looks at it."""
    n, dim = math.prod(grid), len(grid)
    data: dict[str, Any] = {"image": maker.image(grid) if maker.chance(0.8) else None}
    shape: tuple[int, ...] = getattr(data["image"], "shape", ())
    channels = shape[-1] if len(shape) == dim + 1 else int(shape == grid)
    feature_dims = {"f": maker.pick([1, 2, 5, 16, 17])} if maker.chance(0.3) else {}
    data["features"] = {name: maker.array((n, d)) for name, d in feature_dims.items()}
    if maker.chance(0.15):
        dim = maker.count(1, 4)
        data["positions"] = maker.array((n, dim))
    elif maker.chance(0.15):
        data["spacing"] = [maker.number(0.1, 10) for _ in range(dim)]
    if maker.chance(0.15) and n:
        mask = maker.rng.random(grid) < 0.5
        mask.flat[0] = True
        data["mask"] = maker.formed(mask)
    terms = [maker.term(n_labels, dim, channels, feature_dims) for _ in range(maker.count(0, 3))]
    recalibration = None
    if maker.chance(0.1):
        recalibration = maker.rng.normal(size=(n_labels, n_labels + 1))
    return data, DenseCRF(n_labels, terms, recalibration)
