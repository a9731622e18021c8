"""Inference from several threads, after a fork, and with any number of native threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from crfield import Bilateral, DenseCRF, Pairwise, Potts, Spatial, Symmetric

RNG = np.random.default_rng(5)
IMAGE = RNG.integers(0, 256, (70, 60, 3), dtype=np.uint8)
UNARIES = RNG.uniform(0, 3, (6, 70, 60, 3)).astype(np.float32)
MODEL = DenseCRF(
    3, [Pairwise(Spatial(2), Potts(1)), Pairwise(Bilateral(9, 30), Symmetric.l1(3, 0.5))]
)


def infer(unary, **options):
    return MODEL.infer(IMAGE, unary, max_iter=4, tol=0, **{"threads": 2, **options})


def equal(one, other):
    return np.array_equal(one.marginals, other.marginals) and np.array_equal(
        one.free_energies, other.free_energies
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lattice", "exact"])
@pytest.mark.parametrize("algorithm", ["concave", "cccp"])
def test_several_python_threads_get_what_each_gets_alone(algorithm, method):
    options = {"algorithm": algorithm, "filter": method}
    unaries = UNARIES if method == "lattice" else UNARIES[:3]
    alone = [infer(unary, **options) for unary in unaries]
    with ThreadPoolExecutor(len(unaries)) as pool:
        together = list(pool.map(lambda unary: infer(unary, **options), unaries))
    assert all(equal(a, b) for a, b in zip(alone, together, strict=True))


def test_threads_that_use_one_model_with_callbacks_that_raise():
    def fail(iteration, marginals, free_energy):
        raise LookupError

    def one(number):
        if number % 2:
            with pytest.raises(LookupError):
                infer(UNARIES[number], callback=fail)
            return None
        return infer(UNARIES[number])

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(one, range(6)))
    assert all(equal(results[k], infer(UNARIES[k])) for k in (0, 2, 4))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("method", ["lattice", "exact"])
@pytest.mark.parametrize("algorithm", ["concave", "cccp"])
def test_results_repeat_bit_by_bit_and_agree_across_thread_counts(algorithm, method, threads):
    unary, image = UNARIES[0, :45], IMAGE[:45]
    options = {"max_iter": 4, "tol": 0, "algorithm": algorithm, "filter": method}
    first, second, single = (
        MODEL.infer(image, unary, threads=count, **options) for count in (threads, threads, 1)
    )
    assert equal(first, second)
    np.testing.assert_allclose(first.marginals, single.marginals, rtol=0, atol=1e-5)
    np.testing.assert_allclose(first.free_energies, single.free_energies, rtol=1e-5)
