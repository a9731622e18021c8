"""The gradient of a learning objective on a photo: the lattice's own derivative, against central
differences of the lattice's objective and against the gradient with the exact operator.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from crfield import (
    Bilateral,
    DenseCRF,
    Inference,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
    unary_from_probabilities,
)
from crfield.datasets import Shrunk, load_sample, noisy_probabilities
from crfield.learning import DatasetObjective, Parameters, make_loss
from reference import central_differences


def photo(name, factor):
    sample = load_sample(name)
    probabilities = noisy_probabilities(sample.mask, sample.n_labels, seed=0)
    unary = unary_from_probabilities(probabilities).astype(np.float64)
    example = SimpleNamespace(image=sample.image, unary=unary, truth=sample.mask)
    return Shrunk([example], factor)[0], sample.n_labels


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "loss"), [("astronaut", "iou"), ("coffee", "log_likelihood")])
def test_direction_of_the_gradient_on_a_photo(name, loss):
    example, n_labels = photo(name, 4)
    assert example.truth.size > 3000
    model = DenseCRF(n_labels, [
        Pairwise(Spatial([2.9, 3.1]), Potts(1.5)),
        Pairwise(Bilateral([29.7, 30.1], [12.7, 13.1, 13.3]),
                 Symmetric(2.0 * (1 - np.eye(n_labels)))),
    ])
    parameters = Parameters(model, ("unary", "compatibility", "kernel"))

    def objective(method):
        return DatasetObjective(
            parameters, [example], make_loss(loss, [example], n_labels),
            Inference("concave", method, max_iter=5),
        )

    on_lattice = objective("lattice")
    x = parameters.start
    found = on_lattice(x).gradient
    # Longer steps move points into other simplices, where the lattice is another function.
    differences = central_differences(lambda moved: on_lattice(moved).value, x, 1e-7)
    widths = slice(len(x) - 5, None)
    assert cosine(found, differences) > 0.9999
    assert cosine(found[widths], differences[widths]) > 0.99
    assert cosine(found, objective("exact")(x).gradient) > 0.99
