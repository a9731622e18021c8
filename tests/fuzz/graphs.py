"""Random calls of `crfield.graphs`: factor graphs, chains, poses, rays and distances."""

from typing import Any

import numpy as np

from crfield import graphs
from crfield.graphs.settings import SCHEDULES
from tests.fuzz.calls import Call, check_sums, require
from tests.fuzz.spoil import call, spoiled
from tests.fuzz.values import Maker


def costs_of(maker: Maker, shape: tuple[int, ...], forbid: float = 0.1) -> Any:
    """Costs of states, a few of them forbidden, never all of one variable."""
    costs = maker.rng.normal(0, maker.pick([0.1, 1.0, 30.0]), shape)
    if maker.chance(forbid):
        costs[maker.rng.random(shape) < 0.2] = np.inf
        costs[..., 0] = 0.0
    return costs.astype(maker.pick(["f8", "f8", "f4"]))


def make_graph(maker: Maker) -> Call:
    """infer of variables with tables, Potts and distance terms, grids, patterns, rays."""
    n, n_states = maker.count(1, 9), maker.count(1, 4)
    kind = maker.pick(
        ["tables", "tables", "potts", "distance", "grid", "patterns", "rays", "mixed"])
    if kind == "grid":
        height, width = maker.count(1, 4), maker.count(1, 4)
        n = height * width
    elif kind in ("patterns", "rays"):
        n_states = 2
    costs: Any = costs_of(maker, (n, n_states))
    if kind == "mixed":
        costs = [costs_of(maker, (maker.count(1, 3),)) for _ in range(n)]
    rng = maker.rng
    tree = np.array([[int(rng.integers(v)), v] for v in range(1, n)]).reshape(-1, 2)
    any_pairs = np.array(
        [rng.choice(n, 2, replace=False) for _ in range(maker.count(0, 8))] if n > 1 else []
    ).reshape(-1, 2)
    edges = tree if maker.chance(0.5) else any_pairs.astype(np.int64)
    if kind == "grid":
        factors = {"shape": (height, width), "horizontal_weights": float(rng.uniform(0, 3)),
                   "vertical_weights": rng.uniform(0, 3, (height - 1, width))}
        make: Any = graphs.GridFactors
    elif kind == "potts":
        factors = {"edges": edges, "weights": rng.normal(size=len(edges))}
        make = graphs.PottsFactors
    elif kind == "distance":
        factors = {"edges": edges, "weights": rng.uniform(0, 2, len(edges)),
                   "ceilings": maker.pick([np.inf, 1.5]), "power": maker.pick([1, 2])}
        make = graphs.DistanceFactors
    elif kind == "patterns":
        order = maker.count(1, n)
        variables = np.array([rng.choice(n, order, replace=False) for _ in range(2)])
        factors = {"variables": variables, "weights": rng.normal(size=(3, order)),
                   "biases": rng.normal(size=3), "composition": maker.pick(["sum", "min"])}
        make = graphs.PatternFactors
    elif kind == "rays":
        factors = {"offsets": np.array([0, n]), "variables": rng.permutation(n),
                   "scores": rng.uniform(0, 1, n), "empty_scores": float(rng.uniform(0.1, 1))}
        make = graphs.RayFactors
    elif kind == "mixed":
        sizes = [len(part) for part in costs]
        tables = [(pair, costs_of(maker, tuple(sizes[v] for v in pair), 0.0)) for pair in edges]
        factors, make = {"tables": tables}, graphs.table_factors
    else:
        shape = (n_states, n_states) if maker.chance(0.5) else (len(edges), n_states, n_states)
        factors = {"variables": edges, "costs": costs_of(maker, shape, 0.05)}
        make = graphs.TableFactors
    parts = spoiled(maker, {"costs": costs}) if maker.chance(0.3) else {"costs": costs}
    given = spoiled(maker, factors) if maker.chance(0.5) else factors
    options = spoiled(maker, {
        "temperature": maker.pick([1.0, 1.0, 0.0, 0.3]), "schedule": maker.pick(SCHEDULES[:3]),
        "max_iter": maker.count(1, 12), "damping": maker.pick([0.0, 0.5]), "tol": 1e-6,
        "convex": maker.chance(0.2), "threads": 1,
    })
    more = maker.pick(["", "k best", "sample", "condition", "factors"])

    def run() -> list[Any]:
        made = make(**given)
        graph = graphs.FactorGraph(parts["costs"], made if isinstance(made, list) else [made])
        result = graphs.infer(graph, **options)
        found: list[Any] = [result.marginals, result.labels, result.log_partition, graph.energy(
            result.labels, result.temperature)]
        if more == "k best" and graph.is_forest:
            found.append(graphs.k_best(graph, 5, threads=1).energies)
        elif more == "sample" and graph.is_forest:
            found.append(graphs.sample(graph, 3, seed=1, threads=1))
        elif more == "condition":
            found.append(graphs.condition(graph, {0: int(result.labels[0])}).costs)
        elif more == "factors" and kind not in ("patterns", "rays"):
            found.append(result.factor_marginals(0))
        return found

    def check(found: list[Any]) -> None:
        check_sums(found[0])
        require(not np.isnan(found[2]) and not np.isnan(found[3]), "an energy that is NaN")
        if more == "k best" and len(found) > 4:
            require((np.diff(found[4]) >= -1e-9).all(), "energies that are not in order")

    return Call(run, check, {**parts, **given, **options, "kind": kind})


def make_chains(maker: Maker) -> Call:
    """Chains and all that is asked of them."""
    n_states, lengths = maker.count(1, 5), [maker.count(1, 6) for _ in range(maker.count(1, 4))]
    n = sum(lengths)
    rng = maker.rng
    costs: Any = costs_of(maker, (n, n_states))
    given = {
        "costs": costs, "lengths": np.array(lengths),
        "transitions": costs_of(maker, maker.pick([
            (n_states, n_states), (n - len(lengths), n_states, n_states)]), 0.1),
    }
    kind = maker.pick(["infer", "best", "k best", "sample", "energies", "loss"])
    if kind == "infer":
        given |= {"temperature": maker.pick([1.0, 0.0, 0.1]), "threads": 1}
        edges = maker.chance(0.5)

        def check(result: Any) -> None:
            check_sums(result.marginals)
            require(np.isin(result.labels, np.arange(n_states)).all(), "labels that are none")
            if edges:
                check_sums(result.factor_marginals().reshape(n - len(lengths), n_states**2))

        return call(maker, on_chains(graphs.infer), given, check)
    if kind == "best":
        return call(maker, on_chains(graphs.best), given)
    if kind == "k best":
        return call(maker, on_chains(graphs.k_best), {**given, "k": maker.count(1, 9)})
    if kind == "sample":
        given |= {"n_samples": maker.count(1, 4), "seed": maker.count(0, 9), "temperature": 1.0}
        return call(maker, on_chains(graphs.sample), given)
    given["labels"] = rng.integers(0, n_states, n)
    function = on_chains(graphs.Chains.energy) if kind == "energies" else graphs.chain_loss
    return call(maker, function, given)


def on_chains(verb: Any) -> Any:
    """A verb as a function of what chains are made of."""
    def function(costs: Any, transitions: Any, lengths: Any, **options: Any) -> Any:
        return verb(graphs.Chains(costs, transitions, lengths=lengths), **options)

    return function


def make_pose(maker: Maker) -> Call:
    """PictorialStructure and Poses: infer, energy, sample, fit; distance transforms."""
    rng = maker.rng
    parts, turns = maker.count(1, 4), maker.pick([1, 1, 2])
    height, width = maker.count(1, 6), maker.count(1, 6)
    parents = np.array([-1, *(int(rng.integers(part)) for part in range(1, parts))])
    shape = (parts, height, width) if turns == 1 else (parts, turns, height, width)
    kind = maker.pick(["infer", "sample", "energy", "fit", "distance", "soft"])
    if kind in ("distance", "soft"):
        function = (
            graphs.distance_transform if kind == "distance" else graphs.soft_distance_transform
        )
        return call(maker, function, {
            "costs": costs_of(maker, (height, width)), "weights": rng.uniform(0, 3, 2),
            "offsets": rng.normal(size=2), "threads": 1,
        })
    if kind == "fit":
        given = {"positions": rng.uniform(0, 9, (maker.count(1, 6), parts, 2)), "parents": parents,
                 "least_deviation": 0.5, "pseudo_count": 1.0}
        return call(maker, lambda **a: graphs.PictorialStructure.fit(**a).weights, given)
    structure = spoiled(maker, {
        "parents": parents, "offsets": rng.normal(size=(parts, 2)),
        "weights": rng.uniform(0, 1, (parts, 2)),
        "transitions": rng.uniform(0, 1, (parts, turns, turns)),
    })
    costs = spoiled(maker, {"costs": costs_of(maker, shape)})["costs"]

    def run() -> list[Any]:
        poses = graphs.Poses(graphs.PictorialStructure(**structure), costs)
        if kind == "sample":
            return list(poses.places(graphs.sample(poses, 3, seed=2, threads=1)))
        least, result = graphs.best(poses, threads=1), graphs.infer(poses, threads=1)
        energy = poses.energy(least.positions, least.orientations if turns > 1 else None)
        return [least.positions, energy, result.marginals, least.min_marginals]

    def check(found: list[Any]) -> None:
        if kind != "sample":
            check_sums(np.asarray(found[2]).reshape(len(found[2]), -1))

    return Call(run, check, {**structure, "costs": costs, "kind": kind})


def make_rays(maker: Maker) -> Call:
    """RayModel, infer, fuse_independent, ray_messages, traversal and cameras."""
    rng = maker.rng
    kind = maker.pick(["infer", "infer", "fuse", "messages", "traverse", "camera"])
    if kind == "messages":
        n = maker.count(1, 6)
        return call(maker, graphs.ray_messages, {
            "incoming": rng.uniform(0.01, 1, (n, 2)), "scores": rng.uniform(0, 1, n),
            "empty_score": float(rng.uniform(0, 1)), "temperature": maker.pick([0.0, 1.0, 1.0]),
        })
    if kind == "traverse":
        grid = spoiled(maker, {"shape": [3, 4, 2], "origin": rng.normal(size=3),
                               "spacing": float(rng.uniform(0.1, 2))})
        n = maker.count(1, 5)
        return call(
            maker, lambda **a: graphs.VoxelGrid(**grid).traverse(**a, threads=1),
            {"origins": rng.normal(0, 5, (n, 3)), "directions": rng.normal(size=(n, 3)),
             "distances": maker.chance(0.5)},
        )
    if kind == "camera":
        given = {"projection": rng.normal(size=(3, 4)), "image_size": [5, 6]}
        return call(maker, lambda **a: graphs.Camera(**a).rays(), given)
    n = maker.count(1, 9)
    lists = [rng.permutation(n)[:maker.count(0, n)] for _ in range(maker.count(1, 5))]
    offsets = np.cumsum([0, *(len(ray) for ray in lists)])
    model = spoiled(maker, {
        "grid": n, "offsets": offsets, "voxels": np.concatenate(lists).astype(np.int64),
        "scores": rng.uniform(0, 1, offsets[-1]).astype(maker.pick(["f4", "f8"])),
        "prior": float(rng.uniform(0.01, 0.9)), "empty_scores": float(rng.uniform(0.1, 1)),
    })
    if kind == "fuse":
        return Call(
            lambda: graphs.fuse_independent(graphs.RayModel(**model), threads=1),
            lambda found: require(np.isfinite(found).all(), "no probabilities"), model,
        )
    options = {"max_iter": maker.count(1, 6), "damping": maker.pick([0.0, 0.5]), "tol": 1e-4,
               "temperature": maker.pick([0.0, 1.0, 1.0]), "threads": 1}
    return call(maker, lambda **a: graphs.infer(graphs.RayModel(**model), **a), options)
