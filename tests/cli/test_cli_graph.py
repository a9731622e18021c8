"""`crfield graph`, run as a user runs it."""

import inspect
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from crfield.cli import main
from crfield.cli.graph import SCHEDULES
from crfield.graphs import (
    FactorGraph,
    TableFactors,
    condition,
    infer,
    inference,
    read_uai,
    write_uai,
)
from crfield.graphs import settings as graph_settings
from failing_commands import failure

# Cloudy, sprinkler, rain, wet grass: the loop is cut by knowing whether it is cloudy.
SPRINKLER = """BAYES
4
2 2 2 2
4
1 0
2 0 1
2 0 2
3 1 2 3

2
0.5 0.5
4
0.5 0.5 0.9 0.1
4
0.8 0.2 0.2 0.8
8
1 0 0.1 0.9 0.1 0.9 0.01 0.99
"""
# a, b and c in a chain; log Z = log(4 * 6 + 6 * 15).
CHAIN = "MARKOV\n3\n2 2 3\n2\n2 0 1\n2 1 2\n\n4\n1 2 3 4\n\n6\n1 2 3 4 5 6\n"
# Neighbors on a ring of four must differ.
RING = "MARKOV 4 2 2 2 2 4 2 0 1 2 1 2 2 2 3 2 0 3" + " 4 0 1 1 0" * 4
TRIANGLE = "MARKOV 3 2 2 2 3 2 0 1 2 1 2 2 0 2" + " 4 0 1 1 0" * 3


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    """A folder to work in, with models and evidence."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "sprinkler.uai": SPRINKLER, "chain.uai": CHAIN, "ring.uai": RING, "triangle.uai": TRIANGLE,
        "cloudy.evid": "2 0 1 3 1\n", "wet.evid": "1\n1 3 1\n", "two.evid": "2\n1 0 0\n1 0 1\n",
    }.items():
        Path(name).write_text(text)


def facts(capsys, *words):
    assert main(["graph", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys, *words):
    assert main(["graph", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def chain_weights():
    first, second = np.arange(1.0, 5).reshape(2, 2), np.arange(1.0, 7).reshape(2, 3)
    return np.einsum("ab,bc->abc", first, second)


def test_everything_about_a_chain(capsys):
    found = facts(capsys, "chain.uai")
    weights = chain_weights()
    assert found["log_partition"] == pytest.approx(np.log(weights.sum()))
    assert found["log10_partition"] == pytest.approx(np.log10(weights.sum()))
    for v, row in enumerate(found["marginals"]):
        others = tuple(u for u in range(3) if u != v)
        np.testing.assert_allclose(row, weights.sum(others) / weights.sum())
    assert found["map"]["states"] == [1, 1, 2]
    assert found["map"]["energy"] == pytest.approx(-np.log(24))
    assert found["map"]["log_probability"] == pytest.approx(np.log(24 / weights.sum()))
    assert found["exact"]
    assert found["status"] == "exact"
    assert (found["n_variables"], found["n_factors"], found["has_loops"]) == (3, 2, False)


def test_a_readable_table(capsys):
    assert printed(capsys, "chain.uai") == (
        "chain.uai: 3 variables, 2 joint tables, no loops\n"
        "log Z: 4.736198 (log10 2.056905), exact\n"
        "MAP: energy -3.178054, log-probability -1.558145, exact\n"
        "\n"
        "variable  MAP  marginals\n"
        "      0     1  0.3158 0.6842\n"
        "      1     1  0.2105 0.7895\n"
        "      2     2  0.2456 0.3333 0.4211\n"
    )


def test_tasks_by_themselves(capsys):
    text = printed(capsys, "chain.uai", "--task", "pr")
    assert text.splitlines()[1:] == ["log Z: 4.736198 (log10 2.056905), exact"]
    text = printed(capsys, "chain.uai", "--task", "mar")
    assert text.splitlines()[1:5] == [
        "marginals: exact", "", "variable  marginals", "      0   0.3158 0.6842"
    ]
    text = printed(capsys, "chain.uai", "--task", "map", "--temperature", "0")
    assert text.splitlines()[1:5] == [
        "MAP: energy -3.178054, exact", "", "variable  MAP", "      0     1"
    ]


def test_temperature(capsys):
    weights = chain_weights() ** 0.5
    found = facts(capsys, "chain.uai", "--temperature", "2")
    assert found["log_partition"] == pytest.approx(np.log(weights.sum()))
    np.testing.assert_allclose(found["marginals"][0], weights.sum((1, 2)) / weights.sum())
    assert found["map"]["log_probability"] == pytest.approx(np.log(24**0.5 / weights.sum()))
    assert "log Z at temperature 2: " in printed(capsys, "chain.uai", "--temperature", "2")


def test_evidence_that_cuts_the_loop(capsys):
    found = facts(capsys, "sprinkler.uai", "--evidence", "cloudy.evid")
    sprinkler, rain = np.array([0.9, 0.1]), np.array([0.2, 0.8])
    wet = np.array([[0, 0.9], [0.9, 0.99]])
    joint = 0.5 * sprinkler[:, None] * rain * wet
    assert found["exact"]
    assert not found["has_loops"]
    assert found["observed"] == {"0": 1, "3": 1}
    assert found["log_partition"] == pytest.approx(np.log(joint.sum()))
    np.testing.assert_allclose(found["marginals"][2], joint.sum(0) / joint.sum())
    assert found["marginals"][0] == [0, 1]
    assert found["map"]["states"] == [1, 0, 1, 1]
    text = printed(capsys, "sprinkler.uai", "--evidence", "cloudy.evid")
    assert ", no loops, 2 observed\n" in text
    assert "      3*    1  0.0000 1.0000\n* observed\n" in text


def test_the_manual_shows_what_is_printed(capsys):
    manual = (Path(__file__).resolve().parents[2] / "docs" / "uai.md").read_text("utf-8")
    Path("grass.uai").write_text(SPRINKLER)
    shown = re.search(r"```text\n(.*?)```", manual, re.S)
    assert printed(capsys, "grass.uai", "--evidence", "cloudy.evid") == shown[1]


def test_loops(capsys):
    found = facts(capsys, "sprinkler.uai", "--evidence", "wet.evid", "--damping", "0.2",
                  "--max-iter", "400", "--tol", "1e-10", "--schedule", "residual")
    assert found["has_loops"]
    assert not found["exact"]
    assert found["converged"]
    assert found["status"].startswith("approximate because of loops, converged after ")
    expected = infer(
        condition(read_uai("sprinkler.uai"), {3: 1}), damping=0.2, max_iter=400, tol=1e-10,
        schedule="residual",
    )
    assert found["log_partition"] == expected.log_partition
    np.testing.assert_array_equal(found["marginals"], expected.marginals)
    assert found["map"]["states"] == [1, 0, 1, 1]
    text = printed(capsys, "sprinkler.uai", "--max-iter", "2")
    assert "not converged after 2 iterations (last change " in text
    assert "raise --max-iter or --damping, or use --schedule residual\n" in text
    assert "log-probability about " in text


def test_a_schedule_for_loops_without_loops(capsys):
    found = facts(capsys, "chain.uai", "--schedule", "flooding")
    assert found["status"].startswith("converged after ")
    assert found["log_partition"] == pytest.approx(np.log(chain_weights().sum()), abs=1e-4)


def test_states_of_max_product_that_exclude_each_other_are_mended(capsys):
    found = facts(capsys, "ring.uai")
    states = found["map"]["states"]
    assert all(states[v] != states[(v + 1) % 4] for v in range(4))
    assert found["map"]["energy"] == 0
    assert found["map"]["n_rounds_of_fixing"] == 0  # inference chooses them in turn


def test_variables_are_fixed_where_single_changes_do_not_help(capsys):
    rounds = []
    for seed in (1, 5, 17, 19, 23, 46):
        # Three colors, chosen first, so that there is an answer.
        rng = np.random.default_rng(seed)
        colors = rng.integers(0, 3, 12)
        pairs = [
            (a, b) for a, b in itertools.combinations(range(12), 2)
            if colors[a] != colors[b] and rng.random() < 0.45
        ]
        scopes = " ".join(f"2 {a} {b}" for a, b in pairs)
        tables = " 9 0 1 1 1 0 1 1 1 0" * len(pairs)
        Path("map.uai").write_text(f"MARKOV 12 {'3 ' * 12} {len(pairs)} {scopes} {tables}")
        found = facts(capsys, "map.uai", "--task", "map")["map"]
        rounds.append(found["n_rounds_of_fixing"])
        if found["states"] is not None:
            assert all(found["states"][a] != found["states"][b] for a, b in pairs)
            assert found["energy"] == 0
            if rounds[-1] > 1:
                text = f"; {rounds[-1]} rounds of fixing variables\n"
                assert text in printed(capsys, "map.uai", "--task", "map")
    assert max(rounds) > 1


def test_nothing_is_allowed_at_all(capsys):
    text = printed(capsys, "triangle.uai", "--task", "map")
    assert text.splitlines()[1].startswith("MAP: none found that the model allows; try another")
    assert facts(capsys, "triangle.uai", "--task", "map")["map"]["states"] is None
    error = failure(capsys, "graph", "triangle.uai", "--out", "solution")
    assert "no joint state to write to solution.MPE was found; try another --schedule" in error
    assert not list(Path().glob("solution*"))


def test_mended_states_of_larger_rings_and_grids(capsys):
    n = 6
    pixels = np.arange(n * n).reshape(n, n)
    edges = np.concatenate([
        np.stack([pixels[:, :-1].ravel(), pixels[:, 1:].ravel()], 1),
        np.stack([pixels[:-1].ravel(), pixels[1:].ravel()], 1),
    ])
    table = np.where(np.eye(3) > 0, np.inf, 0.0)
    costs = np.random.default_rng(0).normal(0, 1, (n * n, 3))
    write_uai(FactorGraph(costs, [TableFactors(edges, table)]), "grid.uai")
    states = np.array(facts(capsys, "grid.uai", "--task", "map")["map"]["states"])
    assert (states[edges[:, 0]] != states[edges[:, 1]]).all()


def test_best_joint_states_and_samples(capsys):
    found = facts(capsys, "chain.uai", "--k-best", "4", "--samples", "300", "--seed", "3")
    weights = chain_weights()
    best = sorted(itertools.product(range(2), range(2), range(3)), key=lambda x: -weights[x])[:4]
    assert [tuple(row["states"]) for row in found["k_best"]][:1] == best[:1]
    np.testing.assert_allclose(
        [row["energy"] for row in found["k_best"]], [-np.log(weights[x]) for x in best]
    )
    share = np.mean(np.array(found["samples"])[:, 0])
    assert share == pytest.approx(found["marginals"][0][1], abs=0.12)
    assert facts(capsys, "chain.uai", "--samples", "300", "--seed", "3")["samples"] == (
        found["samples"])
    text = printed(capsys, "chain.uai", "--k-best", "2", "--samples", "1", "--task", "pr")
    assert "\n\n    energy  best joint states\n   -3.1781  1 1 2\n" in text
    assert text.splitlines()[-2] == "samples"


def test_large_models_are_printed_in_part(capsys):
    n = 100
    write_uai(FactorGraph(np.arange(20.0 * n).reshape(n, 20) / 1000), "large.uai")
    lines = printed(capsys, "large.uai", "--samples", "1").splitlines()
    assert "... 60 more; --json and --out have them all" in lines
    assert lines[5].endswith(", ... of 20 states")
    assert lines[-1].endswith(" ... of 100")
    assert len(facts(capsys, "large.uai")["marginals"]) == n


def test_solution_files(capsys):
    text = printed(capsys, "chain.uai", "--out", "solution")
    assert text.endswith("wrote solution.PR\nwrote solution.MAR\nwrote solution.MPE\n")
    task, value = Path("solution.PR").read_text().split()
    assert (task, float(value)) == ("PR", pytest.approx(np.log10(114)))
    assert Path("solution.MPE").read_text() == "MPE\n3 1 1 2\n"
    task, line = Path("solution.MAR").read_text().splitlines()
    words = [float(word) for word in line.split()]
    assert (task, words[:2], words[4], words[7]) == ("MAR", [3, 2], 2, 3)
    assert words[2:4] == pytest.approx([36 / 114, 78 / 114])
    assert main(["graph", "chain.uai", "--task", "map", "--out", "best.MAP", "--json"]) == 0
    assert Path("best.MAP").read_text() == "MAP\n3 1 1 2\n"
    assert not list(Path().glob("best.MAP.*"))


@pytest.mark.parametrize(("words", "expected"), [
    (["missing.uai"], "cannot read missing.uai: no such file or directory; check the name"),
    (["."], ". is a folder"),
    (["cloudy.evid"], "cloudy.evid: expected MARKOV or BAYES as the first word, got '2'"),
    (["chain.uai", "--evidence", "chain.uai"], "line 1, word 1: expected a finite number"),
    (["chain.uai", "--evidence", "cloudy.evid"], "an observed variable must be at least 0 and"),
    (["sprinkler.uai", "--evidence", "two.evid"], "choose one by observation, from 0 to 1"),
    (["chain.uai", "--observation", "1"], "--observation chooses one in a file of evidence"),
    (["chain.uai", "--temperature", "0"], "and 1e+100, got 0; use --task map"),
    (["chain.uai", "--temperature", "nan"], "--temperature must lie between 1e-06 and 1"),
    (["chain.uai", "--max-iter", "0"], "--max-iter must be at least 1, got 0"),
    (["chain.uai", "--k-best", "0"], "--k-best must be at least 1, got 0"),
    (["chain.uai", "--samples", "-1"], "--samples must be at least 1, got -1"),
    (["chain.uai", "--threads", "0"], "--threads must be at least 1, got 0"),
    (["ring.uai", "--damping", "1"], "damping must be 0 or more and less than 1, got 1"),
    (["ring.uai", "--tol", "-1"], "tol must not be negative, got -1"),
    (["ring.uai", "--samples", "2"], "--samples needs a model without loops, got ring.uai"),
    (["ring.uai", "--k-best", "2"], "--k-best needs a model without loops"),
    (["ring.uai", "--schedule", "exact"], "--schedule exact needs a model without loops"),
    (["chain.uai", "--task", "pr", "--out", "chain.uai"], "chain.uai is read by this command"),
    (["chain.uai", "--out", "."], "--out must be the name of a file, got '.'"),
    (["chain.uai", "--out", "missing/x"], "cannot write missing/x.PR: no such file"),
])
def test_refusals(capsys, words, expected):
    before = set(Path().iterdir())
    assert expected in failure(capsys, "graph", *words)
    assert set(Path().iterdir()) == before


def test_impossible_evidence(capsys):
    Path("dry.evid").write_text("3 1 0 2 0 3 1")
    error = failure(capsys, "graph", "sprinkler.uai", "--evidence", "dry.evid")
    assert "the evidence must have a probability above 0, got states that the model" in error
    # What only messages can tell.
    Path("odd.evid").write_text("2 0 0 2 1")
    assert "forbid" in failure(capsys, "graph", "ring.uai", "--evidence", "odd.evid")


def test_mpe_is_map(capsys):
    found = facts(capsys, "chain.uai", "--task", "mpe", "--out", "best")
    assert found == facts(capsys, "chain.uai", "--task", "map")
    assert Path("best").read_text() == "MPE\n3 1 1 2\n"


def test_convex_bounds_log_z(capsys):
    weights = np.array([[0.3, 1.0], [1.2, 0.4]])
    table = " 4 " + " ".join(map(str, weights.ravel()))
    Path("soft.uai").write_text(RING.partition(" 4 0 1")[0] + table * 4)
    truth = np.log(np.einsum("ab,bc,cd,ad->", *[weights] * 4))
    plain, bound = facts(capsys, "soft.uai"), facts(capsys, "soft.uai", "--convex")
    assert plain["log_partition"] < truth < bound["log_partition"]
    assert (plain["is_upper_bound"], bound["is_upper_bound"]) == (False, True)
    assert bound["map"]["states"] == plain["map"]["states"]
    text = printed(capsys, "soft.uai", "--convex")
    assert f"log Z: at most {bound['log_partition']:.6f}" in text
    assert "log-probability at least" in text
    assert text.count("reweighted because of loops, converged") == 2
    assert "at most" not in printed(capsys, "soft.uai", "--convex", "--max-iter", "1")
    # Without loops there is nothing to reweight.
    assert facts(capsys, "chain.uai", "--convex") == facts(capsys, "chain.uai")


def test_one_of_several_observations(capsys):
    words = ["sprinkler.uai", "--evidence", "two.evid", "--observation"]
    assert facts(capsys, *words, "1")["observed"] == {"0": 1}
    error = failure(capsys, "graph", *words, "2")
    assert "observation must be at least 0 and at most 1, got 2" in error


def test_options_are_those_of_the_library(capsys):
    assert SCHEDULES == graph_settings.SCHEDULES
    assert main(["graph", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    defaults = inspect.signature(infer).parameters
    for option, default in (
        ("--max-iter N", inference.MAX_ITER), ("--damping D", defaults["damping"].default),
        ("--tol X", inference.TOL), ("--temperature T", defaults["temperature"].default),
    ):
        assert f"(default: {default:g})" in text.rsplit(option, 1)[1][:120]
    assert "crfield graph model.uai --evidence model.uai.evid --task mar" in text
