"""Chains: what cannot be meant is refused in a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import crfield
from crfield._core import _native
from crfield.graphs import Chains, best, chain_loss, infer, k_best, sample
from refusal import refusal

COSTS, TABLE = np.zeros((4, 3)), np.zeros((3, 3))
CHAIN = Chains(COSTS, TABLE)


def chain_energy(costs, table, labels):
    return Chains(costs, table).energy(labels)


@pytest.mark.parametrize(("costs", "table", "options", "message"), [
    (np.zeros(4), TABLE, {}, "shape (T, L)"),
    ([np.zeros(3), np.zeros(3)], TABLE, {}, "costs[0] must have shape (T, L)"),
    ([], TABLE, {}, "at least one chain"),
    (np.zeros((0, 4, 3)), TABLE, {}, "at least one chain"),
    ([COSTS, np.zeros((0, 3))], TABLE, {}, "costs[1] must have at least one node"),
    (np.zeros((0, 3)), TABLE, {}, "at least one node"),
    ([COSTS, np.zeros((2, 4))], TABLE, {}, "costs[1] must have as many columns"),
    (np.zeros((4, 0)), np.zeros((0, 0)), {}, "states"),
    (COSTS, np.zeros((4, 4)), {}, "transitions must have shape (3, 3)"),
    (COSTS, np.zeros((4, 3, 3)), {}, "or (3, 3, 3)"),
    (COSTS, np.zeros(9), {}, "transitions must have shape"),
    (COSTS, [[0, 0], [0]], {}, "transitions must be an array of numbers"),
    (COSTS, [[[[0, 1], [1]]]], {}, "transitions[0] must be an array of numbers"),
    (COSTS, [["a"]], {}, "transitions[0] must hold real numbers"),
    ([COSTS, COSTS[:1]], [np.zeros((3, 3, 3))], {}, "one array for each of 2 chains, got 1"),
    (
        [COSTS, COSTS[:1], COSTS[:2]],
        [np.zeros((0, 3, 3)), np.zeros((3, 3, 3)), np.zeros((1, 3, 3))], {},
        "transitions[0] must have shape (3, 3, 3), a table for each edge",
    ),
    ([COSTS], [np.zeros((3, 2, 2))], {}, "got (3, 2, 2)"),
    (COSTS, TABLE, {"lengths": [2, 1]}, "add up to the 4 rows"),
    (COSTS, TABLE, {"lengths": [4, 0]}, "at least 1"),
    (COSTS, TABLE, {"lengths": [2.0, 2.0]}, "whole numbers"),
    (COSTS, TABLE, {"lengths": []}, "lengths"),
    (COSTS, TABLE, {"lengths": [2**63 - 1, 2**63 - 1, 6]}, "add up"),
    (COSTS[None], TABLE, {"lengths": [4]}, "one after the other"),
    (np.where(np.eye(4, 3), np.nan, 0), TABLE, {}, "costs must be finite, got nan at index"),
    (COSTS, np.full((3, 3), np.inf), {}, "transitions must be finite"),
    (np.full((4, 3), 1e31), TABLE, {}, "costs must not exceed"),
    (COSTS.astype(complex), TABLE, {}, "real numbers"),
])
def test_wrong_chains_are_refused(costs, table, options, message):
    assert message in refusal(Chains, costs, table, **options)


def test_wrong_settings_are_refused():
    assert "temperature" in refusal(infer, CHAIN, temperature=-1)
    assert "use best for 0" in refusal(sample, CHAIN, temperature=0)
    assert "temperature" in refusal(infer, CHAIN, temperature="hot")
    for verb in (infer, sample):
        assert "must not exceed 1e+100" in refusal(verb, CHAIN, temperature=1e101)
        verb(CHAIN, temperature=1e100)
    for verb in (infer, best, sample):
        assert "threads" in refusal(verb, CHAIN, threads=0)
    assert "threads" in refusal(k_best, CHAIN, 2, threads=0)
    assert "schedule must be 'auto' or 'exact' for Chains, got 'flooding'" in refusal(
        infer, CHAIN, schedule="flooding"
    )
    assert "group must be at least 0 and at most 0" in refusal(infer(CHAIN).factor_marginals, 1)
    assert "k must be" in refusal(k_best, CHAIN, 0)
    assert "k must be" in refusal(k_best, CHAIN, 2**40)
    assert "n_samples" in refusal(sample, CHAIN, n_samples=0)
    assert "seed" in refusal(sample, CHAIN, seed=-1)
    assert "GiB" in refusal(sample, CHAIN, n_samples=10**15)
    assert "GiB" in refusal(k_best, Chains(np.zeros((10**5, 2)), np.zeros((2, 2))), 10**9)


def test_only_problems_are_inferred():
    for verb in (infer, best, sample):
        assert "Chains" in refusal(verb, COSTS)
    assert "must be a FactorGraph or Chains for k_best, got ndarray" in refusal(k_best, COSTS, 2)


def test_ragged_labels_are_refused():
    assert "labels[0]" in refusal(chain_energy, COSTS, TABLE, [[0, [1, 2], 0, 1]])


def test_what_memory_cannot_hold_is_refused_before_work(monkeypatch):
    costs, table = np.zeros((2, 1000), np.float32), np.zeros((1000, 1000), np.float32)
    monkeypatch.setattr("crfield._core.validate.available_memory", lambda: 6e6)
    chains = Chains(costs, table)
    for verb in (infer, best, sample):
        assert "1000 states" in refusal(verb, chains)
    assert "1000 states" in refusal(k_best, chains, 1)
    per_edge = np.zeros((99, 200, 200), np.float32)
    monkeypatch.setattr("crfield._core.validate.available_memory", lambda: 1.5e7)
    best(chains)  # which needs one table, by rows alone
    assert "(99, 200, 200)" in refusal(
        chain_loss, np.zeros((100, 200), np.float32), per_edge, np.zeros(100, int)
    )
    assert "states" in refusal(infer, chains)


def test_k_is_not_asked_room_for_beyond_the_labelings_there_are(monkeypatch):
    monkeypatch.setattr("crfield._core.validate.available_memory", lambda: 2.0**21)
    found = k_best(Chains(np.arange(6.0).reshape(3, 2), np.zeros((2, 2))), 10**9, threads=64)
    assert found.labels[0].shape == (8, 3)
    assert "GiB" in refusal(k_best, Chains(np.zeros((30, 2)), np.zeros((2, 2))), 10**6)


def test_small_work_is_done_whatever_memory_is_left(monkeypatch):
    monkeypatch.setattr("crfield._core.validate.available_memory", lambda: 0.0)
    infer(CHAIN).factor_marginals()


@pytest.mark.parametrize("function", [chain_energy, chain_loss])
def test_wrong_labels_are_refused(function):
    assert "between 0 and 2, got 3 at index 1" in refusal(function, COSTS, TABLE, [0, 3, 0, 0])
    assert "got -1" in refusal(function, COSTS, TABLE, np.array([0, 0, -1, 0]))
    assert "shape (4,)" in refusal(function, COSTS, TABLE, [0, 0])
    assert "whole numbers" in refusal(function, COSTS, TABLE, np.zeros(4))
    assert "labels[0]" in refusal(function, COSTS, TABLE, [np.zeros((2, 2), int)])
    chains = [COSTS[:2], COSTS[:1]]
    assert "labels[0] must have shape (2,)" in refusal(function, chains, TABLE, [[0], [1, 1]])
    assert "each of 2 chains, got 1" in refusal(function, chains, TABLE, [[0, 1, 1]])
    assert "labels[1]" in refusal(function, chains, TABLE, [[0, 1], 1])
    function(chains, TABLE, [0, 1, 1])
    function(chains, TABLE, [np.array([0, 1]), [1]])


def test_the_core_checks_for_itself():
    costs, table = COSTS, TABLE[None]
    labels, energies = np.empty(4, np.int32), np.empty(1)
    for offsets in ([0, 5], [1, 4], [0, 2, 2, 4], [0], [0, 6, 4]):
        with pytest.raises(ValueError):
            _native.best_chains(
                costs, np.array(offsets), table, False, labels, np.empty(len(offsets) - 1), 1
            )
    with pytest.raises(ValueError):
        _native.best_chains(costs, np.array([0, 4]), table, True, labels, energies, 1)
    with pytest.raises(ValueError):
        _native.best_chains(costs, np.array([0, 4]), table, False, labels[:3], energies, 1)


@pytest.mark.slow
def test_instruction_sets_that_are_not_there_mean_the_widest_one():
    plain = {key: value for key, value in os.environ.items() if key != "CRFIELD_ISA"}
    path = os.pathsep.join(filter(None, [
        str(Path(crfield.__file__).resolve().parents[1]), plain.get("PYTHONPATH"),
    ]))

    def chosen(**wish):
        words = [sys.executable, "-c", "from crfield._core import _native; print(_native.isa())"]
        environment = {**plain, "PYTHONPATH": path, **wish}
        return subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()

    widest = chosen()
    assert chosen(CRFIELD_ISA="") == chosen(CRFIELD_ISA="mmx") == widest
    assert chosen(CRFIELD_ISA="baseline") == "baseline"
    assert chosen(CRFIELD_ISA="avx512") == widest


def test_inputs_are_left_alone_and_may_be_read_only():
    rng = np.random.default_rng(0)
    costs, table = rng.standard_normal((6, 3)), rng.standard_normal((3, 3))
    copies = costs.copy(), table.copy()
    costs.flags.writeable = table.flags.writeable = False
    infer(Chains(costs, table)).factor_marginals()
    sample(Chains(costs[::2], table.T))
    chain_loss(costs, table, [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(costs, copies[0])
    np.testing.assert_array_equal(table, copies[1])
