"""Threads and processes: forks in the midst of work, spawned workers, joblib, shared models."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import Context

import numpy as np
import pytest

from crfield import Bilateral, DenseCRF, Pairwise, Potts, Spatial, graphcut, graphs, patterns
from crfield._core.locks import hold, open_alone
from refusal import refusal

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


def dense(number, model=MODEL):
    return model.infer(IMAGE, UNARIES[number], max_iter=3, tol=0, threads=2).marginals


def chain(number):
    return graphs.infer(graphs.Chains(CHAINS[0] + number, CHAINS[1]), threads=2).marginals


def grid(number, graph=GRID):
    return graphs.infer(graph, max_iter=5 + number, tol=0, threads=2).marginals


def cut(number):
    costs = UNARIES[number, ..., 0] - UNARIES[number, ..., 1]
    return graphcut.cut_grids(costs[None], WEIGHTS[None], threads=2).labels


def shapes(number, model=SHAPES):
    return patterns.sample(model, SHAPE_COSTS, n_passes=2, seed=number, threads=2)


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
    use = {MODEL: dense, GRID: grid, SHAPES: shapes}.get(thing)
    assert use is None or np.array_equal(use(0, copy), use(0))


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


def test_subinterpreters_are_refused_in_plain_words():
    """Also where nothing of it was imported before, so that NumPy would load."""
    script = """
import importlib, sys
name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
try:
    interpreters = importlib.import_module(name)
except ImportError:
    sys.exit(77)
if sys.argv[1] == "after":
    import crfield
other = interpreters.create()
interpreters.run_string(other, f'''
import sys
sys.path[:] = {sys.path!r}
try:
    import crfield
except ImportError as error:
    print(error, flush=True)
''')
"""
    for when in ("before", "after"):
        done = subprocess.run(
            [sys.executable, "-c", script, when], capture_output=True, text=True, timeout=120
        )
        if done.returncode == 77:
            pytest.skip("this Python has no subinterpreters")
        assert done.stdout == (
            "crfield must be imported in the main interpreter, got a subinterpreter, where NumPy "
            "and its compiled core cannot be loaded; use threads or processes instead.\n"
        ), done.stderr


def test_a_lock_on_a_file_that_is_gone_does_not_count(tmp_path):
    """Others remove it, then replace it, between the moment it is opened and that of the lock."""
    path, other = tmp_path / "held", tmp_path / "other"
    meanwhile = [path.unlink, lambda: other.replace(path), lambda: None]
    other.touch()

    def opener(name):
        file = os.open(name, os.O_RDWR | os.O_CREAT)
        meanwhile.pop(0)()
        return file

    file = open_alone(path, opener, path)
    try:
        assert meanwhile == []
        assert os.path.samestat(os.fstat(file), path.stat())
        meanwhile.append(lambda: None)
        assert "another run" in refusal(open_alone, path, opener, path)
    finally:
        os.close(file)


def test_a_name_that_was_held_is_free_for_others(tmp_path):
    path = tmp_path / "held"
    with hold(path, path), hold(path, path, within=True):
        pass
    elsewhere, other = Context(), hold(path, path)
    elsewhere.run(other.__enter__)
    try:
        assert "another run" in refusal(hold(path, path, within=True).__enter__)
    finally:
        elsewhere.run(other.__exit__, None, None, None)
