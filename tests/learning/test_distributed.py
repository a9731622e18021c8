"""Learning on a cluster: joblib's Dask backend, and a worker that dies on the way."""

import os
import signal

import numpy as np
import pytest

from crfield import Bilateral, DenseCRF, Inference, Pairwise, Potts, Spatial
from crfield.learning import Parameters, learn
from small_dataset import training_images

distributed = pytest.importorskip("dask.distributed")
joblib = pytest.importorskip("joblib")
pytest.importorskip("scipy")

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGALRM"), reason="needs the signals of a POSIX system"
)

SECONDS = 120
GROUPS = ("unary", "compatibility", "kernel")
START = DenseCRF(3, [Pairwise(Spatial(1.5), Potts(0.5)), Pairwise(Bilateral(4, 30), Potts(0.5))])


def run(n_jobs, callback=None):
    return learn(
        START, training_images(4, (12, 16)), learn=GROUPS, max_iter=4,
        inference=Inference("concave", "exact", max_iter=3),
        n_jobs=n_jobs, callback=callback,
    )


def as_vector(model):
    return Parameters(model, GROUPS).start


@pytest.fixture
def _deadline():
    """A cluster that never answers fails the test instead of holding it up."""

    def give_up(number, frame):
        raise TimeoutError(f"the cluster did not answer within {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def client(_deadline, tmp_path):
    """Three worker processes on the loopback interface; port 0 takes one that is free.

    Two are left when one dies. With a single one joblib asks the cluster no more and works in the
    calling process.
    """
    with (
        distributed.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=True, host="127.0.0.1",
            dashboard_address="127.0.0.1:0", local_directory=str(tmp_path),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(3, timeout=SECONDS)
        yield client


@pytest.mark.slow
def test_learning_survives_the_death_of_a_worker(client):
    workers = client.run(os.getpid)
    before = []

    def kill_a_worker(iteration, report):
        if iteration == 1:
            before.extend(task["worker"] for task in client.get_task_stream())
            os.kill(workers[before[0]], signal.SIGKILL)

    client.get_task_stream()  # from here on tasks are recorded
    with joblib.parallel_config(backend="dask"):
        found = run(2, kill_a_worker)
    after = [task["worker"] for task in client.get_task_stream()][len(before) :]
    expected = run(1)

    assert before, "a worker that had done some of the work was killed"
    assert after, "the cluster did the rest"
    assert before[0] not in after
    assert len(found.report.losses) == len(expected.report.losses) > 2
    np.testing.assert_allclose(as_vector(found.model), as_vector(expected.model), atol=1e-6)
    assert np.abs(as_vector(found.model) - as_vector(START)).max() > 0.1, "something was learned"
