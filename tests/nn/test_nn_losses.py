"""The losses as modules against `crfield.learning.losses`, and pair energies against all pairs."""

import numpy as np
import pytest

from torch_device import torch

# isort: split
from crfield import Bilateral, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield import nn as crf_nn
from crfield.learning import losses
from crfield.metrics import confusion_matrix, mean_iou
from small_batch import LABELS, MATRIX, check_gradients, some_batch


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]])
@pytest.mark.parametrize("name", [
    "LogLikelihood", "RobustLogLikelihood", "ExpectedHamming", "IntersectionOverUnion",
])
def test_same_as_for_arrays(name, weights):
    logits, _ = some_batch()
    labels = LABELS.clone()
    labels[0, 0, :2] = 255
    q = torch.softmax(logits, 1).movedim(1, -1).reshape(-1, 3).numpy()
    truth = labels.reshape(-1).numpy()
    of_arrays = getattr(losses, name)(weights=weights)
    wanted = of_arrays.value(of_arrays.totals(q, truth))
    of_tensors = getattr(crf_nn, name)(weights=weights)
    assert of_tensors(logits, labels).item() == pytest.approx(wanted, rel=1e-10)
    assert torch.autograd.gradcheck(
        lambda x: of_tensors(x, labels), (logits.requires_grad_(),), fast_mode=True
    )


@pytest.mark.parametrize(("true", "found"), [([0, 1, 4], [1, 2, 3]), ([2], [2, 3]), ([2], [0])])
def test_iou_of_certain_labels_is_the_measure(true, found):
    """Over a batch, with labels that only the truth, only the prediction or neither has."""
    rng = np.random.default_rng(0)
    truth, predicted = rng.choice([*true, 255], (3, 4, 6)), rng.choice(found, (3, 4, 6))
    logits = torch.from_numpy(1e3 * np.eye(5)[predicted]).movedim(-1, 1)
    loss = crf_nn.IntersectionOverUnion()(logits, torch.from_numpy(truth)).item()
    assert 1 - loss == pytest.approx(mean_iou(confusion_matrix(truth, predicted, 5)))


@pytest.mark.parametrize("compatibility", [Potts(1.5), Symmetric(MATRIX)])
def test_pair_energy_is_the_sum_over_all_pairs(compatibility):
    logits, image = some_batch()
    terms = [Pairwise(Bilateral(4.0, 60.0, normalization="none"), compatibility, weight=0.5)]
    crf = crf_nn.DenseCRF(3, terms, inference=Inference("parallel", "exact")).double()
    q = torch.softmax(logits, 1).numpy()
    mu = 0.5 * compatibility.matrix(3)
    rows, columns = np.mgrid[:4, :5]
    wanted = 0.0
    for k in range(2):
        points = np.stack([
            rows.ravel() / 4.0, columns.ravel() / 4.0,
            *(image[k].reshape(3, -1).numpy() / 60.0),
        ], 1)
        kernel = np.exp(-0.5 * ((points[:, None] - points[None]) ** 2).sum(-1))
        flat = q[k].reshape(3, -1).T
        wanted += 0.5 * np.einsum("ia,ij,jb,ab->", flat, kernel, flat, mu)
    found = crf_nn.PairwiseEnergy(crf)(logits, image).item()
    assert found == pytest.approx(wanted / 40, rel=1e-6)  # weights are kept in float32


@pytest.mark.parametrize("normalization", ["symmetric", "none", "after"])
def test_gradients_of_pair_energies(normalization):
    terms = [
        Pairwise(Spatial(2.0), Potts(1.0)),
        Pairwise(Bilateral(4.0, 60.0, normalization=normalization), Symmetric(MATRIX)),
    ]
    crf = crf_nn.DenseCRF(3, terms, inference=Inference("parallel", "exact")).double()
    check_gradients(crf_nn.PairwiseEnergy(crf), *some_batch(), fast=True)


@pytest.mark.parametrize("normalization", ["before", "after"])
def test_gradients_of_energies_of_unsymmetric_kernels(normalization):
    """K q and K' q differ where points have unequal neighborhoods; both are in the gradient."""
    logits, image = some_batch()
    kernel = Bilateral(2.0, 100.0, normalization=normalization)
    crf = crf_nn.DenseCRF(
        3, [Pairwise(kernel, Symmetric(MATRIX))], inference=Inference("parallel", "exact"), learn=()
    ).double()
    energy = crf_nn.PairwiseEnergy(crf)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: 40 * energy(x, image), (logits,), atol=1e-7, rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it
def test_pair_energies_within_compiled_graphs():
    logits, image = some_batch()
    energy = crf_nn.PairwiseEnergy(crf_nn.DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0))]))
    compiled = torch.compile(energy, backend="aot_eager")
    assert compiled(logits, image).item() == pytest.approx(energy(logits, image).item())


def test_a_network_is_drawn_to_cheap_marginals():
    """Descent on the energy of a noisy labeling removes what the image does not support."""
    rng = torch.Generator().manual_seed(1)
    truth = torch.zeros(1, 12, 12, dtype=torch.long)
    truth[:, :, 6:] = 1
    image = truth[:, None].float() * 200.0
    noisy = torch.where(torch.rand(truth.shape, generator=rng) < 0.15, 1 - truth, truth)
    logits = torch.nn.functional.one_hot(noisy, 2).movedim(-1, 1).float()
    logits = logits.mul(2.0).requires_grad_()
    crf = crf_nn.DenseCRF(2, [Pairwise(Bilateral(5.0, 30.0), Potts(1.0))], learn=())
    energy = crf_nn.PairwiseEnergy(crf)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        energy(logits, image).backward()
        optimizer.step()
    assert (noisy != truth).any()
    assert (logits.argmax(1) == truth).all()
