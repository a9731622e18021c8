"""`crfield graph`: log Z, marginals and the most probable states of a model in a UAI file."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crfield._core.atomic import atomic_path
from crfield._core.validate import InputError, as_count
from crfield.cli.graph_text import Record, report, solution
from crfield.cli.outputs import reserved
from crfield.cli.words import counted

if TYPE_CHECKING:  # the other commands start without crfield.graphs
    from crfield.graphs import FactorGraph, Result

DESCRIPTION = """\
Solve a graphical model in the UAI format: the log of its partition function Z, which with evidence
is the log of the evidence's share of it, the marginals of its variables, and its most probable
joint state (MAP). Exact where the factors form no loops, which evidence may cut; else by loopy
belief propagation, whose log Z is Bethe's approximation."""
EPILOG = """\
examples:
  crfield graph model.uai
  crfield graph model.uai --evidence model.uai.evid --task mar
  crfield graph model.uai --task pr --out model.uai.PR
  crfield graph model.uai --out model.uai               model.uai.PR, .MAR and .MPE
  crfield graph loopy.uai --schedule residual --damping 0.2 --max-iter 1000 --json

A model file has MARKOV or BAYES, the number of variables, their numbers of states, the number of
factors, for each the number of its variables and these, and for each the size of its table and its
entries >= 0, the last variable's state changing fastest. An evidence file has the number of
observed variables and, for each, variable and state, counted from 0."""

SCHEDULES = ("auto", "exact", "flooding", "sequential", "residual")
# Rounds of fixing variables where max-product's states forbid each other, and the share in a round.
_ROUNDS, _SHARE, _CLEAR = 200, 0.1, 0.1


def add_command(commands: Any) -> None:
    """Add the subcommand `graph`."""
    parser = commands.add_parser(
        "graph", help="solve a graphical model in a UAI file: log Z, marginals, MAP",
        description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.uai", help="file of the model")
    add("--evidence", type=Path, metavar="FILE", help="file of observed variables and their states")
    add("--observation", type=int, metavar="N",
        help="which of several observations in that file, from 0")
    add("--task", choices=("all", "mar", "pr", "map", "mpe"), default="all",
        help="marginals, log Z, the most probable joint state (map or mpe), or all "
        "(default: %(default)s)")
    add("--temperature", type=float, default=1.0, metavar="T",
        help="of log Z, marginals and samples, P(x) = exp(-E(x) / T) / Z (default: 1)")
    add("--schedule", choices=SCHEDULES, default="auto",
        help="order of messages; auto is exact without loops and floods others "
        "(default: %(default)s)")
    add("--max-iter", type=int, default=200, metavar="N",
        help="most iterations on loops (default: %(default)s)")
    add("--damping", type=float, default=0.5, metavar="D",
        help="share of an old message that stays, within [0, 1) (default: %(default)s)")
    add("--tol", type=float, default=1e-6, metavar="X",
        help="stop when no message changes by more (default: %(default)s)")
    add("--convex", action="store_true",
        help="reweight messages on loops: log Z is then an upper bound and messages have one fixed "
        "point, but marginals are less certain; the default is Bethe's approximation")
    add("--k-best", type=int, metavar="K",
        help="also the K most probable joint states; without loops only")
    add("--samples", type=int, metavar="N",
        help="also N joint states at random; without loops only")
    add("--seed", type=int, default=0, metavar="N", help="of the samples (default: %(default)s)")
    add("--out", type=Path, metavar="FILE",
        help="also write the solution in the UAI format; with --task all FILE.PR, FILE.MAR and "
        "FILE.MPE")
    add("--overwrite", action="store_true", help="replace files that exist")
    add("--threads", type=int, metavar="N", help="threads (default: one per core)")
    add("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, solve, write what was asked for, and print it."""
    task = "map" if arguments.task == "mpe" else arguments.task
    tasks = ("pr", "mar", "map") if task == "all" else (task,)
    outputs = _outputs(arguments.out, tasks)
    inputs = [path for path in (arguments.model, arguments.evidence) if path]
    with reserved(tuple(outputs.values()), inputs=inputs, overwrite=arguments.overwrite):
        _check_options(arguments, tasks)
        record = _record(arguments, tasks)
        solutions = {path: solution(record, task, path) for task, path in outputs.items()}
        for path, text in solutions.items():
            with atomic_path(path) as temporary:
                temporary.write_text(text, encoding="ascii")
    print(json.dumps(record, indent=1) if arguments.json else report(record, outputs))
    return 0


def _record(arguments: argparse.Namespace, tasks: tuple[str, ...]) -> Record:
    """The model's facts and its solution."""
    from crfield.graphs import condition, read_evidence, read_uai

    graph = read_uai(arguments.model)
    observed: dict[int, int] = {}
    if arguments.evidence is not None:
        observed = read_evidence(arguments.evidence, arguments.observation)
        graph = condition(graph, observed)
    return {
        "model": str(arguments.model), "n_variables": graph.n_variables,
        "n_factors": graph.n_factors, "has_loops": not graph.is_forest,
        "observed": {str(v): state for v, state in observed.items()},
        **_solve(graph, arguments, tasks),
    }


def _check_options(arguments: argparse.Namespace, tasks: tuple[str, ...]) -> None:
    from crfield.graphs.settings import LARGEST_TEMPERATURE, LEAST_TEMPERATURE

    for name in ("max_iter", "k_best", "samples", "threads"):
        if getattr(arguments, name) is not None:
            as_count(getattr(arguments, name), f"--{name.replace('_', '-')}")
    if not LEAST_TEMPERATURE <= arguments.temperature <= LARGEST_TEMPERATURE and (
        arguments.samples or tasks != ("map",)
    ):
        raise InputError(
            f"--temperature must lie between {LEAST_TEMPERATURE:g} and {LARGEST_TEMPERATURE:g}, "
            f"got {arguments.temperature:g}; use --task map for the limit at 0."
        )
    if arguments.observation is not None and arguments.evidence is None:
        raise InputError(
            "--observation chooses one in a file of evidence, got no --evidence; name the file."
        )


def _solve(graph: FactorGraph, arguments: argparse.Namespace, tasks: tuple[str, ...]) -> Record:
    from crfield.graphs import infer, k_best, sample

    if not graph.is_forest:
        for option, is_given in (
            ("--schedule exact", arguments.schedule == "exact"),
            ("--k-best", arguments.k_best), ("--samples", arguments.samples),
        ):
            if is_given:
                raise InputError(
                    f"{option} needs a model without loops, got {arguments.model} with loops; "
                    "leave it out, or observe variables that cut them."
                )
    options = {
        "schedule": arguments.schedule, "max_iter": arguments.max_iter,
        "damping": arguments.damping, "tol": arguments.tol, "convex": arguments.convex,
        "threads": arguments.threads,
    }
    record: Record = {}
    if tasks != ("map",):
        t = arguments.temperature
        result = infer(graph, temperature=t, **options)
        log_partition = result.log_partition / t
        record |= {"temperature": t, **_course(result, arguments.convex)}
        if "pr" in tasks:
            record["log_partition"] = log_partition
            record["log10_partition"] = log_partition / math.log(10)
            # Only at the fixed point; without loops it is exact.
            record["is_upper_bound"] = (
                arguments.convex and result.converged and not graph.is_forest
            )
        if "mar" in tasks:
            record["marginals"] = [
                row[:n].tolist() for row, n in zip(result.marginals, graph.n_states, strict=True)
            ]
    if "map" in tasks:
        record["map"] = _most_probable(graph, options)
        if "pr" in tasks and record["map"]["energy"] is not None:
            record["map"]["log_probability"] = -record["map"]["energy"] / t - log_partition
    if arguments.k_best:
        ranked = k_best(graph, arguments.k_best, threads=arguments.threads)
        record["k_best"] = [
            {"energy": float(energy), "states": states.tolist()}
            for energy, states in zip(ranked.energies, ranked.labels, strict=True)
        ]
    if arguments.samples:
        record["samples"] = sample(
            graph, arguments.samples, temperature=arguments.temperature, seed=arguments.seed,
            threads=arguments.threads,
        ).tolist()
    return record


def _most_probable(graph: FactorGraph, options: dict[str, Any]) -> Record:
    """What max-product finds; on loops, if it is a joint state that zeros forbid, variables are
    fixed one after the other, those that are most certain first, until what is left agrees.
    """
    from crfield.graphs import best, condition

    first = result = best(graph, **options)
    rounds, left = 0, graph
    while not math.isfinite(result.energy) and rounds < _ROUNDS:
        assert result.min_marginals is not None
        gaps = np.partition(result.min_marginals, 1)[:, 1]
        gaps[np.isinf(gaps)] = -1  # there is nothing to choose
        n_open = int((gaps >= 0).sum())
        if n_open == 0:
            break
        count = min(int((gaps > _CLEAR).sum()), int(_SHARE * n_open))
        chosen = np.argsort(-gaps, kind="stable")[:max(1, count)]
        try:
            left = condition(left, {int(v): int(result.labels[v]) for v in chosen})
            schedule = "auto" if left.is_forest else options["schedule"]
            result = best(left, **options | {"schedule": schedule})
        except InputError:  # these states forbid each other
            break
        rounds += 1
    found = math.isfinite(result.energy)
    return {
        "states": result.labels.tolist() if found else None,
        "energy": float(result.energy) if found else None,
        "n_rounds_of_fixing": rounds, **_course(first, options["convex"]),
    }


def _course(result: Result, convex: bool) -> Record:
    """How inference ended."""
    if result.exact:
        status = "exact"
    elif result.converged:
        how = "reweighted" if convex else "approximate"
        loops = "" if result.problem.is_forest else f"{how} because of loops, "
        status = f"{loops}converged after {counted(result.n_iter, 'iteration')}"
    else:
        status = (
            f"not converged after {counted(result.n_iter, 'iteration')} (last change "
            f"{result.residuals[-1]:.2g}); raise --max-iter or --damping, or use "
            "--schedule residual"
        )
    return {
        "status": status, "exact": result.exact, "converged": result.converged,
        "n_iter": result.n_iter,
    }


def _outputs(out: Path | None, tasks: tuple[str, ...]) -> dict[str, Path]:
    """Files to write by their tasks."""
    if out is None:
        return {}
    if not out.name:
        raise InputError(f"--out must be the name of a file, got {str(out)!r}; add a name to it.")
    if len(tasks) == 1:
        return {tasks[0]: out}
    words = {"pr": "PR", "mar": "MAR", "map": "MPE"}
    return {task: out.with_name(f"{out.name}.{words[task]}") for task in tasks}
