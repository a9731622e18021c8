"""One word per idea in everything public: parameters, methods, estimators and options.

A second word for a known idea fails here.
"""

import argparse
import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import crfield
from crfield.cli import build_parser
from public_names import exported, load, public_modules

SOURCE = Path(crfield.__file__).parent
# Words that are not used, and the word for the idea.
WORDS = {
    "max_iter": "n_iter iterations n_iterations num_iterations max_iterations max_cycles n_cycles",
    "n_epochs": "epochs max_epochs num_epochs",
    "tol": "inference_tol tolerance eps_stop",
    "filter": "method filter_method",
    "filter_tol": "filter_tolerance",
    "learn": "groups parameters_to_learn",
    "compatibility": "compat pairwise pairwise_costs",
    "threads": "n_threads num_threads",
    "n_jobs": "jobs workers n_workers num_workers",
    "seed": "rng random_seed generator",
    "l1": "l1_weight l1_penalty",
    "l2": "C weight_decay ridge l2_weight l2_penalty regularization",
    "step_size": "learning_rate lr step rate",
    "progress": "verbose quiet show_progress",
    "checkpoint": "journal checkpoint_path save_path",
    "temperature": "max_product use_max zero_temperature",
    "labels": "states labeling label_map",
    "void": "ignore_label ignore_index void_label ignored",
    "unknown": "nothing unknown_label unlabeled",
    "init": "initial initial_marginals start_marginals",
}
# Other ideas under the same word.
OTHERS = {
    "ConvolutionalPatterns.sample_hidden(rng)": "a stream of numbers that goes on, not a seed",
    "PatternPotential.sample_hidden(rng)": "a stream of numbers that goes on, not a seed",
    "Patterns.sample_hidden(rng)": "a stream of numbers that goes on, not a seed",
    "PatternInputs(pairwise)": "costs of pairs of pixels, seen in an image",
    "minimize_binary(pairwise)": "costs of each edge of a graph",
    "refine --verbose": "shows every iteration, not a bar",
    "learn --quiet": "prints nothing at all, not only no bar",
}
RIGHT = {wrong: word for word, wrongs in WORDS.items() for wrong in wrongs.split()}
BRITISH = re.compile(
    r"colour|grey|neighbour|behaviour|favour|centre(?!d)|(?:normal|optim|initial|regular|minim|maxim"
    r"|serial|quant|discret|general|recogn|organ|summar|visual|parametr|synchron)is(?:e|ing|ation)",
    re.I,
)
MODULES = public_modules()


def is_result(kind):
    """Whether a class only tells what a call has found; `n_iter` is the count there."""
    return dataclasses.is_dataclass(kind) and any(
        field.name in ("converged", "status", "free_energies") for field in dataclasses.fields(kind)
    )


def signatures(name, value):
    """A function, or a class's constructor and the methods that the package defines."""
    if not inspect.isclass(value):
        yield name, value
        return
    if not is_result(value):
        yield name, value.__init__
    for method, function in inspect.getmembers(value, inspect.isroutine):
        owner = getattr(function, "__module__", "") or ""
        if not method.startswith("_") and owner.startswith("crfield"):
            yield f"{name}.{method}", function


def parameters(function):
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


@pytest.mark.parametrize("module", MODULES)
def test_parameters(module):
    wrong = [
        f"{place}({word}): {RIGHT[word]}"
        for name, value in exported(load(module))
        for place, function in signatures(name, value)
        for word in parameters(function)
        if word in RIGHT and f"{place}({word})" not in OTHERS
    ]
    assert not wrong


@pytest.mark.parametrize("module", MODULES)
def test_random_numbers_and_estimators(module):
    """`random_state` is a parameter of estimators, which are called ...Classifier."""
    for name, value in exported(load(module)):
        estimates = inspect.isclass(value) and hasattr(value, "fit") and hasattr(value, "predict")
        if estimates:
            assert name.endswith(("Classifier", "Refiner")), f"{name} is an estimator"
        for place, function in signatures(name, value):
            found = {"seed", "random_state"} & set(parameters(function))
            assert found <= ({"random_state"} if estimates else {"seed"}), place


def test_options_of_the_command_line():
    actions = build_parser()._actions
    commands = next(a.choices for a in actions if isinstance(a, argparse._SubParsersAction))
    right = {word.replace("_", "-"): known for word, known in RIGHT.items()}
    del right["jobs"]  # joblib's n_jobs, as commands have it
    wrong = [
        f"{command} {option}: {right[option.lstrip('-')]}"
        for command, parser in commands.items()
        for action in parser._actions for option in action.option_strings
        if option.lstrip("-") in right and f"{command} {option}" not in OTHERS
    ]
    assert not wrong


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_identifiers_have_american_spelling(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for field in ("name", "id", "attr", "arg"):
            names.add(str(getattr(node, field, "")))
    assert not [name for name in names if BRITISH.search(name)]
