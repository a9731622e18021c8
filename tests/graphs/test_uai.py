"""UAI files: models against enumeration, evidence, round trips, a sentence for what is wrong."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfield import InputError
from crfield.graphs import (
    DistanceFactors,
    FactorGraph,
    GridFactors,
    PatternFactors,
    PottsFactors,
    RayFactors,
    TableFactors,
    condition,
    infer,
    read_evidence,
    read_uai,
    write_uai,
)
from crfield.graphs.files import numbers
from graph_reference import Reference, table_cost
from refusal import refusal

GOOD = "MARKOV\n3\n2 2 3\n2\n2 0 1\n2 1 2\n\n4\n1 2 3 4\n\n6\n1 2 3 4 5 6\n"

def change(old, new):
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def uai_text(kind, n_states, tables, newline="\n", number=repr):
    """A model file of (variables, weights) in plain Python."""
    lines = [kind, str(len(n_states)), " ".join(map(str, n_states)), str(len(tables))]
    for variables, _ in tables:
        lines.append(" ".join(map(str, [len(variables), *variables])))
    for variables, weights in tables:
        entries = []
        for x in itertools.product(*(range(n_states[v]) for v in variables)):
            entries.append(number(float(weights[x])))
        lines += ["", str(len(entries)), " ".join(entries)]
    return newline.join(lines) + newline


def random_model(rng, forest, hard=False):
    """States and (variables, weights) of orders 0 to 4, some variables with one state."""
    n = int(rng.integers(1, 8))
    n_states = [int(s) for s in rng.choice([1, 2, 2, 3, 4], n)]
    part = list(range(n))
    tables = []
    for _ in range(int(rng.integers(0, 10))):
        order = int(rng.integers(0, min(n, 4) + 1))
        chosen = [int(v) for v in rng.permutation(n)[:order]]
        if forest and len({part[v] for v in chosen}) < order:
            continue
        part = [part[chosen[0]] if p in {part[v] for v in chosen} else p for p in part]
        weights = rng.gamma(1.0, 2.0, [n_states[v] for v in chosen])
        if hard and order > 1:
            weights[rng.random(weights.shape) < 0.3] = 0
            weights[(0,) * order] += 0.1  # so that all in state 0 is allowed
        tables.append((chosen, weights))
    return n_states, tables


def reference(n_states, tables):
    with np.errstate(divide="ignore"):
        factors = [(tuple(v), table_cost(-np.log(w))) for v, w in tables]
    return Reference([np.zeros(s) for s in n_states], factors)


def rows(result):
    return [row[:n] for row, n in zip(result.marginals, result.problem.n_states, strict=True)]


def check_exact(graph, truth):
    result = infer(graph)
    assert result.exact
    assert result.log_partition == pytest.approx(truth.log_partition(1.0), abs=1e-9)
    for found, expected in zip(rows(result), truth.marginals(1.0), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    best = infer(graph, temperature=0.0)
    energies = truth.joint()[1]
    assert truth.energy(tuple(best.labels)) == pytest.approx(energies.min(), abs=1e-9)
    assert best.energy == pytest.approx(energies.min(), abs=1e-9)


@pytest.fixture
def write(tmp_path):
    def save(text, name="model.uai"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return save


@pytest.mark.parametrize("kind", ["MARKOV", "BAYES"])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_forests_equal_enumeration(seed, hard, kind, write):
    n_states, tables = random_model(np.random.default_rng(seed), True, hard)
    graph = read_uai(write(uai_text(kind, n_states, tables)))
    assert graph.n_states.tolist() == n_states
    check_exact(graph, reference(n_states, tables))


@pytest.mark.parametrize("seed", range(12))
def test_any_model_has_the_energies_of_its_file(seed, write):
    n_states, tables = random_model(np.random.default_rng(seed), False, hard=True)
    graph = read_uai(write(uai_text("MARKOV", n_states, tables)))
    for x, energy in zip(*reference(n_states, tables).joint(), strict=True):
        assert graph.energy(x.astype(np.int32)) == pytest.approx(energy, abs=1e-9)


@pytest.mark.parametrize("seed", range(15))
def test_evidence_equals_enumeration_of_what_agrees_with_it(seed, write):
    rng = np.random.default_rng(seed)
    forest = seed % 3 > 0
    n_states, tables = random_model(rng, forest, hard=True)
    graph = read_uai(write(uai_text("MARKOV", n_states, tables)))
    truth = reference(n_states, tables)
    states, energies = truth.joint()
    seen = rng.permutation(len(n_states))[:int(rng.integers(0, len(n_states) + 1))]
    x = states[rng.choice(np.flatnonzero(np.isfinite(energies)))]
    evidence = {int(v): int(x[v]) for v in seen}
    fixed = condition(graph, evidence)
    agrees = (states[:, seen] == x[seen]).all(1)
    for y, energy in zip(states, np.where(agrees, energies, np.inf), strict=True):
        assert fixed.energy(y.astype(np.int32)) == pytest.approx(energy, abs=1e-9)
    if forest:
        weights = np.where(agrees, np.exp(-energies), 0)
        result = infer(fixed)
        assert result.exact
        assert result.log_partition == pytest.approx(np.log(weights.sum()), abs=1e-9)
        for v, row in enumerate(rows(result)):
            expected = [weights[states[:, v] == s].sum() for s in range(n_states[v])]
            np.testing.assert_allclose(row, expected / weights.sum(), atol=1e-9)
    assert condition(graph, {}).costs.tolist() == graph.costs.tolist()


def sprinkler():
    """Cloudy, sprinkler, rain, wet grass: a loop, and a zero."""
    return [2, 2, 2, 2], [
        ([0], np.array([0.5, 0.5])),
        ([0, 1], np.array([[0.5, 0.5], [0.9, 0.1]])),
        ([0, 2], np.array([[0.8, 0.2], [0.2, 0.8]])),
        ([1, 2, 3], np.array([[[1, 0], [0.1, 0.9]], [[0.1, 0.9], [0.01, 0.99]]])),
    ]


def test_evidence_cuts_loops(write):
    graph = read_uai(write(uai_text("BAYES", *sprinkler())))
    assert not graph.is_forest
    truth = reference(*sprinkler())
    assert truth.log_partition(1.0) == pytest.approx(0.0)  # a network's probabilities sum to 1
    states, p = truth.probabilities(1.0)
    result = infer(condition(graph, {0: 1, 3: 1}))
    assert result.exact
    agrees = (states[:, 0] == 1) & (states[:, 3] == 1)
    assert result.log_partition == pytest.approx(np.log(p[agrees].sum()))
    np.testing.assert_allclose(
        result.marginals[2, 1], p[agrees & (states[:, 2] == 1)].sum() / p[agrees].sum()
    )


def test_evidence_turns_edges_into_costs():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3, 3))
    factors = [
        PottsFactors([[0, 1], [1, 2], [2, 3], [3, 0], [4, 5]], rng.normal(size=5)),
        DistanceFactors([[0, 3], [1, 4]], 1.0, 1.5), GridFactors((2, 3), 0.3, 0.4),
        GridFactors((2, 3), 0.3, 0.4, table, None),
        RayFactors([0, 2], [6, 7], [0.5, 0.2], 0.1),
    ]
    costs = [*rng.normal(size=(6, 3)), *rng.normal(size=(2, 2))]
    graph = FactorGraph(costs, factors)
    fixed = condition(graph, {1: 2, 6: 1})
    assert [type(group) for group in fixed.factors] == [
        PottsFactors, DistanceFactors, PottsFactors, TableFactors, RayFactors
    ]
    for states in itertools.product(range(3), range(3), range(3), range(2)):
        joint = [states[0], 2, states[1], states[2], 1, 0, 1, states[3]]
        assert fixed.energy(joint) == pytest.approx(graph.energy(joint))
    assert fixed.energy([0, 1, 0, 0, 0, 0, 1, 0]) == np.inf
    ring = FactorGraph(np.zeros((4, 2)), [PottsFactors([[0, 1], [1, 2], [2, 3], [3, 0]], 1.0)])
    assert condition(ring, {0: 0}).is_forest


def test_pairs_without_tables_are_written_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("crfield.graphs.files.uai._ENTRIES_AT_A_TIME", 20)
    rng = np.random.default_rng(0)
    graph = FactorGraph(rng.normal(size=(12, 3)), [
        PottsFactors([[0, 5], [1, 6], [2, 7]], rng.normal(size=3)),
        GridFactors((3, 4), 0.3, 0.4, rng.normal(size=(3, 3)), None),
    ])
    write_uai(graph, tmp_path / "pairs.uai")
    again = read_uai(tmp_path / "pairs.uai")
    potts, grid = graph.factors
    for _ in range(5):
        states = rng.integers(0, 3, 12)
        image = states.reshape(3, 4)
        energy = graph.costs.reshape(12, 3)[np.arange(12), states].sum()
        energy += (potts.weights * (states[[0, 1, 2]] != states[[5, 6, 7]])).sum()
        energy += 0.3 * grid.tables_by_axis[0][image[:, :-1], image[:, 1:]].sum()
        energy += 0.4 * (image[:-1] != image[1:]).sum()
        assert graph.energy(states) == pytest.approx(energy)
        assert again.energy(states) == pytest.approx(energy)


@pytest.mark.parametrize("text", ["1 0", "2 0 0"])
def test_evidence_that_was_cut_off_is_not_taken_for_none(write, text):
    assert "n pairs of variable and state" in refusal(read_evidence, write(text))


def test_white_space_and_spelling_do_not_matter(write):
    n_states, tables = [2, 3], [([1, 0], np.arange(1.0, 7).reshape(3, 2)), ([], np.float64(2.5))]
    plain = read_uai(write(uai_text("MARKOV", n_states, tables)))
    one_line = " ".join(uai_text("markov", n_states, tables, number="{:e}".format).split())
    windows = "\r\n\t " + uai_text("Markov", n_states, tables, "\r\n", "{:+.3f}".format) + "\n \n"
    words = one_line.replace(" ", "\n\n\n").replace("1.000000e+00", ".1E+1")
    for text in (one_line, windows, words):
        found = read_uai(write(text))
        np.testing.assert_array_equal(found.costs, plain.costs)
        np.testing.assert_array_equal(found.factors[0].costs, plain.factors[0].costs)
    assert infer(plain).log_partition == pytest.approx(np.log(2.5 * 21))


def test_potentials_beyond_double_precision(write):
    graph = read_uai(write(
        "MARKOV 2 2 2 3 2 0 1 1 0 0 4 1e-400 2e-400 0 1.234567890123e-320 2 1e500 0.5e501 "
        "1 1e-99999999999999"
    ))
    log10 = np.log(10)
    assert graph.energy([0, 1]) == pytest.approx((400 - 500 + 99999999999999) * log10 - np.log(2))
    table = [-400, np.log10(2) - 400, -np.inf, np.log10(1.234567890123) - 320]
    np.testing.assert_allclose(graph.factors[0].costs.ravel(), -np.array(table) * log10, 1e-14)


def test_a_table_over_many_variables_of_one_state(write):
    n = 70
    text = f"MARKOV {n} 2 {'1 ' * (n - 1)} 1 {n} {' '.join(map(str, range(n)))} 2 0.25 0.5"
    graph = read_uai(write(text))
    assert graph.is_forest
    assert infer(graph).log_partition == pytest.approx(np.log(0.75))


def test_large_files_are_read_in_blocks(write, monkeypatch):
    n_states, tables = random_model(np.random.default_rng(5), False, hard=True)
    text = uai_text("MARKOV", n_states, [*tables, ([], np.float64(0.5))]).replace("0.5", "1e-400")
    whole = read_uai(write(text))
    monkeypatch.setattr(numbers, "_BLOCK", 7)
    parts = read_uai(write(text))
    np.testing.assert_array_equal(parts.costs, whole.costs)
    for a, b in zip(parts.factors, whole.factors, strict=True):
        np.testing.assert_array_equal(a.costs, b.costs)
    assert "line 12, word 23: expected a finite" in refusal(read_uai, write(change("5 6", "x 6")))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_is_read_again(seed, tmp_path):
    rng = np.random.default_rng(seed)
    table = rng.normal(0, 30, (4, 3, 3))
    table[rng.random(table.shape) < 0.1] = np.inf
    graph = FactorGraph(
        rng.normal(0, 400, (6, 3)),
        [
            TableFactors([[0, 1], [1, 5], [2, 0], [4, 3]], table),
            TableFactors([[0, 1, 2], [3, 4, 5]], rng.normal(0, 1, (3, 3, 3))),
            PottsFactors([[0, 4]], -1.5),
            DistanceFactors([[1, 4], [2, 3]], [0.5, 2], [1.0, np.inf], 2),
            GridFactors((2, 3), 0.25, 2.0, rng.normal(0, 1, (3, 3))),
            PottsFactors([], 1.0),
        ],
    )
    write_uai(graph, tmp_path / "model.uai")
    again = read_uai(tmp_path / "model.uai")
    for x in rng.integers(0, 3, (40, 6)):
        assert again.energy(x) == pytest.approx(graph.energy(x), rel=1e-12, abs=1e-9)
    write_uai(again, tmp_path / "again.uai")
    assert (tmp_path / "again.uai").read_bytes().split()[:20] == (
        tmp_path / "model.uai").read_bytes().split()[:20]
    assert {path.name for path in tmp_path.iterdir()} == {"model.uai", "again.uai"}


def test_variables_of_different_sizes_are_written_and_read_again(tmp_path):
    costs = [np.array([0.0, np.inf]), np.zeros(3), np.array([1.0, 2.0, 4000.0]), np.array([-3.0])]
    graph = FactorGraph(costs)
    write_uai(graph, tmp_path / "model.uai")
    again = read_uai(str(tmp_path / "model.uai"))
    assert again.n_states.tolist() == [2, 3, 3, 1]
    for x in itertools.product(*(range(len(c)) for c in costs)):
        assert again.energy(list(x)) == pytest.approx(graph.energy(list(x)), rel=1e-12)


def test_what_cannot_be_written(tmp_path):
    def writing(*factors, path="model.uai"):
        return refusal(write_uai, FactorGraph(np.zeros((2, 2)), factors), tmp_path / path)

    assert "PatternFactors" in writing(PatternFactors([[0, 1]], [[1.0, 1.0]], [0.0]))
    assert "1e+18 in magnitude" in writing(TableFactors([[0, 1]], [[0, 1e20], [0, 0]]))
    assert "no such file" in writing(path="missing/model.uai")
    assert "must be a FactorGraph, got list" in refusal(write_uai, [], tmp_path / "model.uai")
    assert "path must be a file name" in refusal(write_uai, FactorGraph(np.zeros((1, 2))), 3)
    assert not list(tmp_path.iterdir())


MALFORMED = {
    "empty": ("", "is empty"),
    "blank": (" \n\t\n", "is empty"),
    "no preamble": (change("MARKOV\n", ""), "expected MARKOV or BAYES as the first word, got '3'"),
    "another preamble": (change("MARKOV", "LIMID"), "got 'LIMID'"),
    "preamble only": ("MARKOV", "line 1, after word 1: expected the number of variables"),
    "binary": (b"\x89PNG\r\n\x1a\n\0\0", "is not a text file"),
    "other bytes": (b"\xff\xfe\xfa", "expected MARKOV or BAYES as the first word"),
    "no variables": (change("3\n2 2 3", "0\n"), "line 2, word 2: expected the number of variables"),
    "half a variable": (change("3\n", "2.5\n"), "number of variables, from 1 on, got '2.5'"),
    "negative variables": (change("3\n", "-3\n"), "from 1 on, got '-3'"),
    "many variables": (change("3\n", "1000000000000\n"), "after word 24: expected the number of s"),
    "endless variables": (change("3\n", "1e999\n"), "got '1e999'"),
    "hardly any variables": (change("3\n", "1e-999\n"), "got '1e-999'"),
    "no states": (
        change("2 2 3", "2 0 3"),
        "line 3, word 4: expected the number of states of variable 1, from 1 on, got '0'",
    ),
    "half a state": (change("2 2 3", "2 2 3.5"), "variable 2, from 1 on, got '3.5'"),
    "too many states": (
        change("2 2 3", "2 2 1000000000000"),
        "line 3, word 5: expected a number of states of variable 2 that a file of 23 numbers has "
        "tables for, got '1000000000000'",
    ),
    "large table": (
        change("2 2 3", "900 900 3"),
        "line 8, word 13: expected 810000 entries in the table of factor 0, one for each joint "
        "state of variables [0, 1], got 12 numbers",
    ),
    "a table of 10^300 entries": (
        "MARKOV 60 " + "99999 " * 60 + "1 60 " + " ".join(map(str, range(60))) + " 3 1 1 1",
        "expected a number of states",
    ),
    "a table of 2^200 entries": (
        "MARKOV 200 " + "2 " * 200 + "1 200 " + " ".join(map(str, range(200))) + " 3 1 1 1",
        "expected 1.60694e+60 entries in the table of factor 0",
    ),
    "no number of factors": ("MARKOV 1 2", "after word 3: expected the number of factors"),
    "negative factors": ("MARKOV 1 2 -1", "expected the number of factors, from 0 on, got '-1'"),
    "many factors": (
        "MARKOV 1 2 100000000000000 1 0",
        "after word 6: expected the number of variables that factor 1 joins",
    ),
    "order too high": (
        change("2 0 1", "4 0 1"),
        "line 5, word 7: expected the number of variables that factor 0 joins, 0 to 3, got '4'",
    ),
    "negative order": (change("2 0 1", "-2 0 1"), "factor 0 joins, 0 to 3, got '-2'"),
    "states missing": (
        change("2 2 3\n", "2 2\n"),
        "got '4'; check it and that table 0 has 1 entries (factor 0 joins no variables: check the "
        "numbers of states and the scopes before it)",
    ),
    "an empty scope before the end": (
        "MARKOV 2 2 2 2 0 2 0 1 1 5 4 1 1 1",
        "4 entries in the table of factor 1, got the end of the file; it seems to be cut short "
        "(factor 0 joins no variables",
    ),
    "an empty scope before an order": (
        "MARKOV 2 2 2 2 0 7", "0 to 2, got '7'; correct it there (factor 0 joins no variables",
    ),
    "an empty scope before a variable": (
        "MARKOV 2 2 2 2 0 1 7 1 1", "0 to 1, got '7'; correct it there (factor 0 joins no",
    ),
    "scope cut short": ("MARKOV 3 2 2 3 1 2 0", "expected the variables of factor 0, got the end"),
    "unknown variable": (
        change("2 1 2", "2 1 3"),
        "line 6, word 12: expected a variable of factor 1, 0 to 2, got '3'",
    ),
    "negative variable": (change("2 1 2", "2 -1 2"), "of factor 1, 0 to 2, got '-1'"),
    "part of a variable": (change("2 1 2", "2 1 0.5"), "got '0.5'"),
    "a variable twice": (
        change("2 1 2", "2 1 1"),
        "line 6, word 12: expected variables of factor 1 that differ, got '1'",
    ),
    "wrong size": (
        change("\n4\n", "\n5\n"),
        "line 8, word 13: expected 4, the number of entries in the table of factor 0, which joins "
        "variables [0, 1], got '5'; check it.",
    ),
    "entry missing": (
        change("1 2 3 4\n", "1 2 3\n"),
        "line 12, word 18: expected 6, the number of entries in the table of factor 1, which joins "
        "variables [1, 2], got '1'; check it and that table 0 has 4 entries",
    ),
    "entry too many": (change("1 2 3 4\n", "1 2 3 4 5\n"), "line 9, word 18: expected 6"),
    "cut short": (
        GOOD[:-4],
        "line 12, after word 22: expected 6 entries in the table of factor 1, got the end of the "
        "file; it seems to be cut short",
    ),
    "last table missing": (GOOD[:GOOD.index("6\n")], "6 entries in the table of factor 1"),
    "tables missing": (
        GOOD[:GOOD.index("\n4\n")],
        "line 6, after word 12: expected 4 entries in the table of factor 0",
    ),
    "words after the end": (
        GOOD + "7 8",
        "line 13, word 25: expected the end of the file after the last table, got '7'",
    ),
    "negative entry": (
        change("5 6", "-5 6"),
        "line 12, word 23: expected an entry of the table of factor 1, 0 or more, got '-5'",
    ),
    "tiny negative entry": (change("5 6", "-1e-999 6"), "0 or more, got '-1e-999'"),
    "NaN": (change("5 6", "nan 6"), "line 12, word 23: expected a finite number, got 'nan'"),
    "infinity": (change("5 6", "inf 6"), "expected a finite number, got 'inf'"),
    "no exponent fits": (change("5 6", "1e9999999999999999999 6"), "expected a finite number"),
    "words": (change("5 6", "five 6"), "word 23: expected a finite number, got 'five'"),
    "comma": (change("5 6", "5,6"), "got '5,6'"),
    "underscore": (change("5 6", "5_0 6"), "got '5_0'"),
    "zero with an underscore": (change("5 6", "0_0 6"), "got '0_0'"),
    "hexadecimal": (change("5 6", "0x5 6"), "got '0x5'"),
    "other digits": (change("5 6", "٥ 6"), "expected a finite number"),
    "bytes in a table": (GOOD.encode().replace(b"5 6", b"\xff 6"), "expected a finite number"),
    "long word": (change("5 6", "x" * 10_000), "expected a finite number, got 'xxxx"),
    "zeros": (
        change("1 2 3 4\n", "0 0.0 -0 0e5\n"),
        "line 9, word 14: expected an entry above 0 in the table of factor 0, got '0'",
    ),
    "zero constant": ("MARKOV 1 2 1 0 1 0", "an entry above 0 in the table of factor 0"),
    "zeros together": (
        "MARKOV 1 2 2 1 0 1 0 2 0 1 2 1 0", "expected a state of variable 0 that its tables allow"
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_models_get_a_sentence_with_the_place(name, write):
    text, expected = MALFORMED[name]
    message = refusal(read_uai, write(text))
    assert expected in message
    assert "model.uai" in message


def test_files_that_cannot_be_read(tmp_path):
    assert "is a folder" in refusal(read_uai, tmp_path)
    assert "no such file or directory" in refusal(read_uai, tmp_path / "missing.uai")
    assert "cannot read" in refusal(read_uai, "a\0b")
    assert "not a regular file" in refusal(read_uai, "/dev/null")
    assert "path must be a file name, got 3" in refusal(read_uai, 3)
    assert "path must be a file name" in refusal(read_evidence, None)


def test_good_is_good(write):
    graph = read_uai(write(GOOD))
    assert infer(graph).log_partition == pytest.approx(np.log(np.array([4, 6]) @ np.array([6, 15])))
    assert read_uai(write("BAYES 2 2 3 0")).n_factors == 0


@pytest.mark.parametrize(("text", "expected"), [
    ("2 0 1 3 0", {0: 1, 3: 0}),
    ("2\n0 1\n3 0\n", {0: 1, 3: 0}),
    ("\r\n1\r\n2 0 1 3 0\r\n", {0: 1, 3: 0}),
    ("1 2 0 1 3 0", {0: 1, 3: 0}),
    ("0", {}),
    ("1\n0", {}),
    ("2 1 0 0 0", {1: 0, 0: 0}),
])
def test_evidence_in_either_form(text, expected, write):
    assert read_evidence(write(text)) == expected


def test_several_observations(write):
    path = write("2\n1 0 0\n0\n", "seen.evid")  # in the new form x_1 = x_0 = 0
    message = refusal(read_evidence, path)
    assert "seen.evid holds 2 observations, expected one; choose one by observation" in message
    assert read_evidence(path, 0) == {0: 0}
    assert read_evidence(path, observation=1) == {}
    assert "observation must be at least 0 and at most 1, got 2" in refusal(read_evidence, path, 2)
    assert read_evidence(write("3\n1 0 0\n2 0 1 2 2\n1 2 0"), 1) == {0: 1, 2: 2}


@pytest.mark.parametrize(("text", "expected"), [
    ("", "is empty"),
    ("2 0 1", "5 numbers for n = 2, got 3"),
    ("1 0 1 2 0", "3 numbers for n = 1, got 5"),
    ("1 0 1 0", "3 numbers for n = 1, got 4"),
    ("100000000000000000 0 1", "expected a whole number from 0 on, got '100000000000000000'"),
    ("1000000000000 0 1", "2000000000001 numbers for n = 1000000000000, got 3"),
    ("1 -1 0", "line 1, word 2: expected a whole number from 0 on, got '-1'"),
    ("1 0 0.5", "word 3: expected a whole number from 0 on, got '0.5'"),
    ("1\n1 x 0", "line 2, word 3: expected a finite number, got 'x'"),
    ("2\n0 1\n0 1", "line 3, word 4: expected a variable that has no state yet, got '0'"),
    (b"\0\1", "is not a text file"),
])
def test_malformed_evidence(text, expected, write):
    assert expected in refusal(read_evidence, write(text))


def test_evidence_that_does_not_fit(write):
    graph = read_uai(write(uai_text("BAYES", *sprinkler())))
    assert "an observed variable must be at least 0 and at most 3, got 4" in refusal(
        condition, graph, {4: 0})
    assert "an observed variable" in refusal(condition, graph, {"a": 0})
    assert "state of variable 3 must be at least 0 and at most 1, got 2" in refusal(
        condition, graph, {3: 2})
    assert "state of variable 3" in refusal(condition, graph, {3: 0.5})
    for impossible in ({1: 0, 2: 0, 3: 1}, {0: 0, 1: 0, 2: 0, 3: 1}):
        assert "a probability above 0" in refusal(condition, graph, impossible)
    assert "expects a FactorGraph and states" in refusal(condition, graph, [0, 1])
    assert "got dict" in refusal(condition, {0: 1}, {0: 1})
    certain = read_uai(write("MARKOV 1 2 1 1 0 2 1 0"))
    assert "nothing is left for variable 0" in refusal(condition, certain, {0: 1})


def check_read_or_refused(path):
    """Both readers take a file or refuse it with a sentence; everything else is an error."""
    for read in (read_uai, read_evidence):
        sentence = "."
        try:
            read(path)
        except InputError as error:
            sentence = str(error)
        assert "\n" not in sentence
        assert sentence.endswith(".")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_broken_files_are_refused_or_read_never_worse(data, tmp_path_factory):
    rng = np.random.default_rng(data.draw(st.integers(0, 20)))
    n_states, tables = random_model(rng, False, hard=True)
    words = uai_text("MARKOV", n_states, tables, number="{:.3g}".format).split()
    if data.draw(st.booleans()):
        words = words[:data.draw(st.integers(0, len(words)))]
    bad = ["", "0", "1", "2", "-1", "7", "nan", "1e400", "-1e-400", "1e-400", "x", "1_0", "0.5",
           "1000000", "99999999999999999999", "\0", "1e5", "[]", "é"]
    for _ in range(data.draw(st.integers(0, 3))):
        if words:
            place = data.draw(st.integers(0, len(words) - 1))
            length = data.draw(st.integers(0, 1))
            words[place:place + length] = [data.draw(st.sampled_from(bad))]
    path = tmp_path_factory.getbasetemp() / "broken"
    path.write_text(data.draw(st.sampled_from([" ", "\n", "\r\n"])).join(words), "utf-8")
    check_read_or_refused(path)


@settings(max_examples=100, deadline=None)
@given(text=st.binary(max_size=60), head=st.sampled_from([b"", b"MARKOV ", b"BAYES 2 2 2 1 "]))
def test_any_bytes_are_refused_or_read_never_worse(text, head, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(head + text)
    check_read_or_refused(path)
