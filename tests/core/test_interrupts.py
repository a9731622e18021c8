"""Signals while native code is at work, and threads that are in it when the interpreter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import cache

import numpy as np
import pytest

from crfield import graphs
from crfield._core import _native

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="there are no timers that send signals here"
)

RNG = np.random.default_rng(3)
NOISE = RNG.random(1 << 22, np.float32)
SIZES = 1, 4, 16


def is_stopped(call):
    """Whether one native call ends with what a signal handler raises.

    The handler raises when it runs for the second time. Where native code does not look for
    signals it runs once, when the call has returned.
    """
    runs, is_inside = 0, True

    def raise_at_last(*_):
        nonlocal runs
        runs += 1
        if runs == 2 and is_inside:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_at_last)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        call()
        is_inside = False  # else a signal on the way out would end the whole run of tests
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False


def numbers(*shape, dtype=np.float32):
    """Random numbers, the same again and again where there are many."""
    return np.resize(NOISE, shape).astype(dtype)


# Each makes one native call on data of a size: as long as a machine may need to be interrupted.
def lattice_build(size):
    side = 300 * size
    return lambda: _native.Lattice32(
        [np.arange(side).tolist()] * 2, 255 * numbers(side * side, 3), [0.2] * 3, 2
    )


def dense_build(size):
    features = 30 * numbers(60_000 * size, 6, dtype=np.float64)
    return lambda: _native.Lattice64(features, False, 1)


@cache
def lattice(n_points=100_000):
    return _native.Lattice32(RNG.uniform(0, 40, (n_points, 5)).astype(np.float32), False, 2)


def lattice_apply(size):
    kernel = lattice()
    x = numbers(100_000, 100 * size)
    return lambda: kernel.apply(x, None, None, np.empty_like(x), 1)


def lattice_apply_with_threads(size):
    kernel = lattice()
    x = numbers(100_000, 150 * size)
    return lambda: kernel.apply(x, None, None, np.empty_like(x), 2)


def lattice_row_sums(size):
    kernel = lattice(500_000 * size)
    return lambda: kernel.row_sums(np.empty(500_000 * size, np.float32), 1)


def lattice_diagonal(size):
    kernel = lattice(500_000 * size)
    return lambda: kernel.diagonal(np.empty(500_000 * size, np.float32), 1)


def lattice_gradient(size):
    kernel = lattice()
    x = numbers(100_000, 50 * size)
    out = np.empty((100_000, 5), np.float32)
    return lambda: kernel.feature_gradient(x, None, x, None, out, np.empty_like(x), 1)


def grid_apply(size):
    kernel = _native.Grid32([np.arange(0.0, 600.0).tolist()] * 2)
    x = numbers(360_000, 40 * size)
    return lambda: kernel.apply(x, None, None, np.empty_like(x), 1)


def grid_gradient(size):
    kernel = _native.Grid32([np.arange(0.0, 400.0).tolist()] * 2)
    x = numbers(160_000, 40 * size)
    out = np.empty((160_000, 2), np.float32)
    return lambda: kernel.feature_gradient(x, None, x, None, out, np.empty_like(x), 1)


def exact_build(size):
    features = numbers(300_000 * size, 3)
    return lambda: _native.ExactSum32(features, 0, 1e-30, 1)


def exact_apply(size):
    kernel = _native.ExactSum32(numbers(20_000, 5), 0, 0.0, 1)
    x = numbers(20_000, 20 * size)
    return lambda: kernel.apply(x, None, None, np.empty_like(x), 2)


def coupled_update(size):
    q = numbers(4_000 * size, 12, dtype=np.float64)
    mu = -np.eye(12).ravel()
    return lambda: _native.update_marginals(
        q, q, q, [np.ones(len(q))], np.zeros(1), mu, True, np.empty_like(q), 1
    )


def separable_update(size):
    q = numbers(400_000 * size, 10)
    return lambda: _native.update_marginals(
        q, q, q, [np.ones(len(q), np.float32)], np.zeros(1, np.float32),
        np.ones(10, np.float32), False, np.empty_like(q), 1,
    )


def message(size):
    x = numbers(50_000, 100 * size)
    mu = numbers(x.shape[1] ** 2)
    return lambda: _native.add_message(2, mu, x, None, 1.0, True, np.empty_like(x), 1)


def plan(size):
    unary = numbers(100_000, 100 * size)
    mu = np.full(unary.shape[1], -1, np.float32)
    made = _native.Plan32(unary, [(lattice(), None, None, None, mu)], 0, 2)
    made.step(-1, 0, None, None)
    return made, unary


def plan_step(size):
    made, unary = plan(size)
    return lambda: made.step(0, 1, None, np.empty_like(unary))


def plan_step_back(size):
    made, unary = plan(size)
    labels = unary.shape[1]
    by_mu, total = np.zeros((1, labels, labels)), np.zeros_like(unary)
    return lambda: made.step_back(0, unary, unary, True, total, by_mu)


def chain_arguments(length, n_states):
    return (
        numbers(length, n_states), np.array([0, length]), numbers(1, n_states, n_states), False
    )


def sum_chains(size):
    arguments = chain_arguments(6_000 * size, 300)
    log_z, marginals, counts = np.empty(1), np.empty_like(arguments[0]), np.empty((300, 300))
    return lambda: _native.sum_chains(*arguments, 1.0, log_z, marginals, counts, None, 1)


def sum_stiff_chains(size):
    arguments = chain_arguments(400 * size, 200)
    log_z, marginals, counts = np.empty(1), np.empty_like(arguments[0]), np.empty((200, 200))
    return lambda: _native.sum_chains(*arguments, 1e-4, log_z, marginals, counts, None, 1)


def sample_chains(size):
    arguments = chain_arguments(1_000, 100)
    labels = np.empty((2_000 * size, 1_000), np.int32)
    return lambda: _native.sample_chains(*arguments, 1.0, 0, labels, 1)


def best_chains(size):
    arguments = chain_arguments(15_000 * size, 300)
    labels, energies = np.empty(15_000 * size, np.int32), np.empty(1)
    return lambda: _native.best_chains(*arguments, labels, energies, 1)


def k_best_chains(size):
    arguments = chain_arguments(500 * size, 50)
    labels, energies = np.empty(100 * 500 * size, np.int32), np.empty((1, 100))
    return lambda: _native.k_best_chains(*arguments, labels, energies, 1)


def cut_grids(size):
    side = 1_000 * size
    costs = numbers(1, side * side) - 0.5
    weights = np.full((1, 2, side * side), 0.2, np.float32)
    labels, energies = np.empty((1, side * side), np.uint8), np.empty(1)
    offsets = [(0, 0, 1), (0, 1, 0)]
    return lambda: _native.cut_grids(
        costs, weights, weights, (1, side, side), offsets, labels, energies, 2
    )


def cut_graph(size):
    n = 100_000 * size
    edges = np.stack([np.tile(np.arange(n), 4), RNG.integers(0, n, 4 * n)], 1).astype(np.int32)
    edges = edges[edges[:, 0] != edges[:, 1]]
    capacities = np.full(len(edges), 0.2)
    costs, labels = numbers(n, dtype=np.float64) - 0.5, np.empty(n, np.uint8)
    return lambda: _native.cut_graph(costs, edges, capacities, capacities, labels)


def expansion(size):
    side = 400 * size
    unary, mu = numbers(side * side, 8), (1 - np.eye(8)).astype(np.float32)
    weights = np.full(2 * side * side, 0.1, np.float32)
    labels = np.zeros(side * side, np.int32)
    offsets = [(0, 0, 1), (0, 1, 0)]
    return lambda: _native.grid_cycle(
        unary, weights, mu, (1, side, side), offsets, False, labels
    )


def gibbs(size):
    side = 3_000 * size
    odds = numbers(1, side, side)
    weights = np.zeros((1, 2, side, side), np.float32)
    labels = np.zeros((1, side, side), np.uint8)
    return lambda: _native.sweep_grids(
        labels, odds, weights, np.zeros(1, np.int32), np.zeros(1, np.uint64), 0, 0, 1
    )


def propagation(size, n_factors):
    n = 100_000 * size
    pairs = np.stack([np.arange(n - 1), np.arange(1, n)], 1)
    if n_factors > 1:
        pairs = np.concatenate([pairs, np.stack([np.arange(n - 2), np.arange(2, n)], 1)])
    graph = graphs.FactorGraph(
        numbers(n, 8, dtype=np.float64),
        [graphs.TableFactors(pairs, numbers(8, 8, dtype=np.float64))],
    )
    costs = np.ascontiguousarray(numbers(n, 8, dtype=np.float64).ravel())
    return _native.Propagation(graph.structure, graph.groups(1.0), costs, 1.0, None, 1)


def flood(size):
    messages = propagation(2 * size, 2)
    return lambda: messages.flood(0.0)


def sweep(size):
    messages = propagation(size, 2)
    return lambda: messages.sweep(0.0, False)


def most_changed(size):
    messages = propagation(size, 2)
    return lambda: messages.update_most_changed(0.0, 10**9)


def two_pass(size):
    messages = propagation(2 * size, 1)
    return lambda: messages.two_pass()


def choose(size):
    messages = propagation(1, 1)
    messages.two_pass()
    return lambda: messages.choose(0, np.empty((10 * size, 100_000), np.int32))


def choose_in_turn(size):
    messages = propagation(size, 2)
    return lambda: messages.choose_in_turn(np.empty(100_000 * size, np.int32))


@cache
def planes(size):
    side = 700 * size
    edges = numbers(side * (side - 1))
    return side, _native.GridPropagation32(
        side, side, numbers(side * side, 10), edges, edges, numbers(10, 10), None, 1.0, 1
    )


def grid_build(size):
    side = 1_500 * size
    costs, edges = numbers(side * side, 10), numbers(side * (side - 1))
    return lambda: _native.GridPropagation32(
        side, side, costs, edges, edges, None, None, 1.0, 1
    )


def grid_flood(size):
    _, made = planes(size)
    return lambda: made.flood(0.0)


def grid_log_partition(size):
    _, made = planes(size)
    return lambda: made.log_partition()


def grid_edge_beliefs(size):
    side, made = planes(size)
    out = np.empty(2 * side * (side - 1) * 100, np.float32)
    return lambda: made.edge_beliefs(out)


def ray_lines(size):
    n = 30_000 * size
    origins = np.stack([np.full(n, -1.0), *RNG.uniform(50, 250, (2, n))], 1)
    directions = np.stack([np.ones(n), *RNG.uniform(-0.3, 0.3, (2, n))], 1)
    return (300, 300, 300), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), origins, directions


def count_crossings(size):
    lines = ray_lines(size)
    return lambda: _native.count_crossings(*lines, np.empty(len(lines[3]), np.int64), 1)


def ray_lists(size):
    lines = ray_lines(size)
    offsets = np.zeros(len(lines[3]) + 1, np.int64)
    _native.count_crossings(*lines, offsets[1:], 2)
    np.cumsum(offsets, out=offsets)
    return lines, offsets, np.empty(offsets[-1], np.int32)


def list_crossings(size):
    lines, offsets, voxels = ray_lists(size)
    return lambda: _native.list_crossings(*lines, offsets, voxels, None, None, 1)


def ray_problem(size):
    lines, offsets, voxels = ray_lists(size)
    _native.list_crossings(*lines, offsets, voxels, None, None, 2)
    lists = offsets, voxels, numbers(len(voxels)), np.full(len(offsets) - 1, 0.1)
    return lists, np.zeros(300**3, np.int64), numbers(len(voxels))


def update_rays(size):
    lists, sums, messages = ray_problem(size)
    return lambda: _native.update_rays(*lists, sums, sums.copy(), 30, messages, 0.0, False, 1)


def depth_posteriors(size):
    lists, sums, messages = ray_problem(size)
    empty = np.empty(len(lists[3]), np.float32)
    return lambda: _native.depth_posteriors(
        *lists, sums, 30, messages, False, np.empty_like(messages), empty, 1
    )


def fuse_depths(size):
    lists, sums, _ = ray_problem(size)
    prior = np.full(len(sums), 0.5)
    return lambda: _native.fuse_depths(*lists, prior, sums, 30, 1)


def distances(size):
    costs = numbers(4 * size, 1_500, 1_500, dtype=np.float64)
    pairs = np.ones((4 * size, 2))
    values, argmins = np.empty_like(costs), np.empty(costs.shape, np.int32)
    return lambda: _native.distance_transform(costs, pairs, pairs, values, argmins, 1)


def soft_distances(size):
    costs = numbers(size, 600, 600, dtype=np.float64)
    pairs = np.full((size, 2), 1e-6)
    return lambda: _native.soft_distance_transform(costs, pairs, pairs, np.empty_like(costs), 1)


LOOPS = [
    lattice_build, dense_build, lattice_apply, lattice_apply_with_threads, lattice_row_sums,
    lattice_diagonal, lattice_gradient, grid_apply, grid_gradient, exact_build, exact_apply,
    coupled_update, separable_update, message, plan_step, plan_step_back, sum_chains,
    sum_stiff_chains, sample_chains, best_chains, k_best_chains, cut_grids, cut_graph, expansion,
    gibbs, flood, sweep, most_changed, two_pass, choose, choose_in_turn, grid_build, grid_flood,
    grid_log_partition, grid_edge_beliefs, count_crossings, list_crossings, update_rays,
    depth_posteriors, fuse_depths, distances, soft_distances,
]


@pytest.mark.slow
@pytest.mark.parametrize("make", LOOPS, ids=lambda make: make.__name__)
def test_every_long_loop_notices_signals(make):
    try:
        assert any(is_stopped(make(size)) for size in SIZES)
    finally:
        lattice.cache_clear()
        planes.cache_clear()


def busy(size=1):
    """A call of a good second and what it writes, NaN before."""
    kernel = _native.ExactSum32(numbers(20_000 * size, 5), 0, 0.0, 1)
    x = numbers(20_000 * size, 4)
    out = np.full_like(x, np.nan)
    return lambda: kernel.apply(x, None, None, out, 2), out


def test_what_a_handler_raises_comes_out_and_the_result_stays_incomplete():
    for size in SIZES:
        call, out = busy(size)
        # A signal that came when all was done leaves a complete result.
        if is_stopped(call) and not np.isfinite(out).all():
            break
    assert np.isnan(out).all()
    call()
    assert np.isfinite(out).all()


def test_handlers_may_call_into_the_core_and_see_python_s_numbers():
    """Denormal numbers are flushed to zero in the core, not in a handler; pools do not deadlock."""
    call, out = busy()
    call()
    expected, seen, is_looking = out.copy(), [], False
    inner, inner_out = busy()
    least = np.nextafter(0, 1)

    def look(*_):
        nonlocal is_looking
        if len(seen) < 2 and not is_looking:
            is_looking = True
            seen.append(bool(least + 0 > 0))
            inner()
            seen[-1] &= np.array_equal(inner_out, expected)
            is_looking = False

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        while len(seen) < 2:
            call()
            assert np.array_equal(out, expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [True, True]


def test_other_threads_are_not_interrupted():
    call, out = busy()
    runs = []

    def note(*_):
        runs.append(threading.current_thread())

    before = signal.signal(signal.SIGALRM, note)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        worker = threading.Thread(target=call)
        worker.start()
        worker.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert np.isfinite(out).all()
    assert set(runs) <= {threading.main_thread()}


def run_script(script, *arguments):
    """What a new process prints, which must end well."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=300,
        env=dict(os.environ, PYTHONWARNINGS="ignore"),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")
def test_the_thread_that_forks_is_the_main_thread_of_the_child():
    script = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from test_interrupts import SIZES, busy, is_stopped
def fork():
    child = os.fork()
    if child == 0:
        os._exit(0 if any(is_stopped(busy(size)[0]) for size in SIZES) else 1)
    print(os.waitpid(child, 0)[1])
thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""
    assert run_script(script, os.path.dirname(__file__)) == ["0"]


DAEMONS = """
import os, sys, threading
from types import SimpleNamespace
import numpy as np
import crfield
from crfield import graphcut, graphs, learning, patterns

rng = np.random.default_rng(0)
image = rng.integers(0, 256, (24, 20, 3), dtype=np.uint8)
unary = rng.random((24, 20, 3), dtype=np.float32)
model = crfield.DenseCRF(3, [
    crfield.Pairwise(crfield.Spatial(2), crfield.Potts(1)),
    crfield.Pairwise(crfield.Bilateral(9, 30), crfield.Potts(2)),
])
chains = graphs.Chains(rng.normal(size=(5, 30, 20)), rng.normal(size=(20, 20)))
weights = graphcut.constant_weights((24, 20), 4)
shapes = patterns.PatternCRF(
    patterns.Patterns(rng.normal(size=(30, 4)), rng.normal(size=4)), grid=(5, 6)
)
costs = patterns.PatternInputs(rng.normal(size=(3, 5, 6, 2)))
example = SimpleNamespace(image=image, unary=unary, truth=rng.integers(0, 3, (24, 20)))
CALLS = {
    "dense": lambda: model.infer(image, unary, max_iter=3, threads=2),
    "exact": lambda: model.infer(image, unary, max_iter=3, threads=2, filter="exact"),
    "cut": lambda: graphcut.cut_grids(unary[None, ..., 0] - 0.5, weights[None], threads=2),
    "chains": lambda: graphs.infer(chains, threads=2),
    "gibbs": lambda: patterns.sample(shapes, costs, n_passes=2, seed=0, threads=2),
    "learn": lambda: learning.learn(model, [example], max_iter=2),
}
call = CALLS[sys.argv[1]]

def work(inside):
    while True:
        call()
        inside.set()

def start():
    inside = threading.Event()
    threading.Thread(target=work, args=(inside,), daemon=True).start()
    inside.wait()

for _ in range(20):
    child = os.fork()
    if child == 0:
        start()  # and the interpreter ends
        break
    print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")
@pytest.mark.parametrize("kind", ["dense", "exact", "cut", "chains", "gibbs", "learn"])
def test_a_daemon_thread_in_the_core_does_not_disturb_the_end_of_the_interpreter(kind):
    assert run_script(DAEMONS, kind) == ["0"] * 20
