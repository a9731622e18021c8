"""Threads and processes: forks in the midst of work, spawned workers, joblib, shared models."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from crfield import Bilateral, DenseCRF, Pairwise, Potts, Spatial, graphcut, graphs, patterns

RNG = np.random.default_rng(7)
IMAGE = RNG.integers(0, 256, (24, 20, 3), dtype=np.uint8)
UNARIES = RNG.uniform(0, 3, (4, 24, 20, 3)).astype(np.float32)
MODEL = DenseCRF(3, [Pairwise(Spatial(2), Potts(1)), Pairwise(Bilateral(9, 30), Potts(2))])
CHAINS = RNG.normal(size=(5, 30, 4)), RNG.normal(size=(4, 4))
GRID = graphs.FactorGraph(RNG.normal(size=(60, 3)), [graphs.GridFactors((6, 10), 0.5, 0.5)])
WEIGHTS = graphcut.constant_weights((24, 20), 4)
SHAPES = patterns.PatternCRF(
    patterns.Patterns(RNG.normal(size=(30, 4)), RNG.normal(size=4)), grid=(5, 6)
)
SHAPE_COSTS = patterns.PatternInputs(RNG.normal(size=(3, 5, 6, 2)))

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")


def dense(number):
    return MODEL.infer(IMAGE, UNARIES[number], max_iter=3, tol=0, threads=2).marginals


def chain(number):
    return graphs.infer(graphs.Chains(CHAINS[0] + number, CHAINS[1]), threads=2).marginals


def grid(number):
    return graphs.infer(GRID, max_iter=5 + number, tol=0, threads=2).marginals


def cut(number):
    costs = UNARIES[number, ..., 0] - UNARIES[number, ..., 1]
    return graphcut.cut_grids(costs[None], WEIGHTS[None], threads=2).labels


def shapes(number):
    return patterns.sample(SHAPES, SHAPE_COSTS, n_passes=2, seed=number, threads=2)


KINDS = {"dense": dense, "chain": chain, "grid": grid, "cut": cut, "shapes": shapes}


def everything(number):
    """What every part of the compiled core gives."""
    return [KINDS[name](number) for name in sorted(KINDS)]


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_threads_that_share_one_model_get_what_each_gets_alone(name):
    alone = [KINDS[name](number) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(KINDS[name], [0, 1, 2, 3] * 4))
    assert all(np.array_equal(together[k], alone[k % 4]) for k in range(16))


def test_all_parts_of_the_core_at_once():
    alone = [everything(number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(equal, pool.map(everything, range(4)), alone))


def _send_everything(connection, number):
    connection.send(everything(number))
    connection.close()


def in_child(context, number):
    """`everything` of a new process, which must neither hang nor fail."""
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_everything, args=(sender, number))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, as meant
        child.start()
    sender.close()
    try:
        assert receiver.poll(60), "the child hangs"
        found = receiver.recv()
        child.join(60)
        assert child.exitcode == 0
        return found
    finally:
        child.kill()


@needs_fork
def test_forks_while_other_threads_are_in_the_compiled_core():
    expected = everything(0)
    busy, stop = threading.Barrier(3), threading.Event()

    def work():
        busy.wait()
        while not stop.is_set():
            dense(1)
            grid(1)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        busy.wait()
        context = multiprocessing.get_context("fork")
        for _ in range(4):
            assert equal(in_child(context, 0), expected)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert equal(everything(0), expected)


def told_by_fork(work):
    """What a forked process writes to the pipe that `work` is given."""
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            try:
                work(sender)
            finally:
                os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with open(receiver, "rb") as pipe:
        return pipe.read()


@needs_fork
def test_forks_of_forks():
    expected = everything(2)

    def told():
        return b"same" if equal(everything(2), expected) else b"other"

    def fork_again(sender):
        first = told()
        os.write(sender, told_by_fork(lambda inner: os.write(inner, told())))
        os.write(sender, first)

    assert told_by_fork(fork_again) == b"samesame"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_other_kinds(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method} here")
    assert equal(in_child(multiprocessing.get_context(method), 1), everything(1))


def test_a_pool_of_processes():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        found = list(pool.map(everything, range(2)))
    assert all(map(equal, found, map(everything, range(2))))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
def test_joblib(backend):
    joblib = pytest.importorskip("joblib")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = joblib.Parallel(n_jobs=2, backend=backend)(
            joblib.delayed(everything)(number) for number in range(3)
        )
    assert all(map(equal, found, map(everything, range(3))))


@pytest.mark.parametrize(
    "thing", [MODEL, GRID, SHAPES, SHAPE_COSTS], ids=lambda thing: type(thing).__name__
)
def test_what_goes_to_other_processes_survives_pickling(thing):
    copy = pickle.loads(pickle.dumps(thing))
    assert type(copy) is type(thing)
    if thing is MODEL:
        found = copy.infer(IMAGE, UNARIES[0], max_iter=3, tol=0, threads=2).marginals
        assert np.array_equal(found, dense(0))
    elif thing is GRID:
        found = graphs.infer(copy, max_iter=5, tol=0, threads=2).marginals
        assert np.array_equal(found, grid(0))
    elif thing is SHAPES:
        found = patterns.sample(copy, SHAPE_COSTS, n_passes=2, seed=0, threads=2)
        assert np.array_equal(found, shapes(0))


def test_results_and_errors_survive_pickling():
    from crfield import InputError, refine

    result = refine(IMAGE, UNARIES[0] / UNARIES[0].sum(-1, keepdims=True))
    copy = pickle.loads(pickle.dumps(result))
    assert np.array_equal(copy.marginals, result.marginals)
    assert copy.status is result.status
    error = pickle.loads(pickle.dumps(InputError("a sentence; a remedy.")))
    assert isinstance(error, InputError)
    assert str(error) == "a sentence; a remedy."


@needs_fork
def test_no_more_threads_to_be_had():
    """Where the system gives no threads, the caller does all of the work itself."""
    resource = pytest.importorskip("resource")
    expected = dense(0)

    def work_alone(sender):
        if os.geteuid() == 0:
            os.setuid(65534)  # no limit holds for the administrator
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        os.write(sender, b"same" if np.array_equal(dense(0), expected) else b"other")

    assert told_by_fork(work_alone) == b"same"
