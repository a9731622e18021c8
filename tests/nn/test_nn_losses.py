"""The losses as modules against `crfield.learning.losses`, and pair energies against all pairs."""

import numpy as np
import pytest

from torch_device import torch

# isort: split
from crfield import Bilateral, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield import nn as crf_nn
from crfield.learning import losses
from refusal import refusal

MATRIX = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.5], [2.0, 1.5, 0.0]])


def some_batch(seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 4, 5, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, 3, (2, 4, 5), generator=rng)
    labels[0, 0, :2] = 255
    image = 255 * torch.rand(2, 3, 4, 5, generator=rng, dtype=torch.float64)
    return logits, labels, image


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]])
@pytest.mark.parametrize("name", [
    "LogLikelihood", "RobustLogLikelihood", "ExpectedHamming", "IntersectionOverUnion",
])
def test_same_as_for_arrays(name, weights):
    logits, labels, _ = some_batch()
    q = torch.softmax(logits, 1).movedim(1, -1).reshape(-1, 3).numpy()
    truth = labels.reshape(-1).numpy()
    of_arrays = getattr(losses, name)(weights=weights)
    wanted = of_arrays.value(of_arrays.totals(q, truth))
    of_tensors = getattr(crf_nn, name)(weights=weights)
    assert of_tensors(logits, labels).item() == pytest.approx(wanted, rel=1e-10)
    assert torch.autograd.gradcheck(
        lambda x: of_tensors(x, labels), (logits.requires_grad_(),), fast_mode=True
    )


def test_bad_arguments_are_refused():
    logits, labels, _ = some_batch()
    assert "labels must have shape" in refusal(crf_nn.LogLikelihood(), logits, labels[:, :2])
    assert "weights" in refusal(crf_nn.LogLikelihood, weights=[-1.0, 1.0, 1.0])
    assert "eps" in refusal(crf_nn.RobustLogLikelihood, -1.0)


@pytest.mark.parametrize("compatibility", [Potts(1.5), Symmetric(MATRIX)])
def test_pair_energy_is_the_sum_over_all_pairs(compatibility):
    logits, _, image = some_batch()
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
    logits, _, image = some_batch()
    terms = [
        Pairwise(Spatial(2.0), Potts(1.0)),
        Pairwise(Bilateral(4.0, 60.0, normalization=normalization), Symmetric(MATRIX)),
    ]
    crf = crf_nn.DenseCRF(3, terms, inference=Inference("parallel", "exact")).double()
    energy = crf_nn.PairwiseEnergy(crf)
    names = [name for name, _ in energy.named_parameters()]

    def call(logits, image, *values):
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(energy, parameters, (logits, image))

    inputs = [x.detach().requires_grad_() for x in (logits, image, *energy.parameters())]
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("normalization", ["before", "after"])
def test_gradients_of_energies_of_unsymmetric_kernels(normalization):
    """K q and K' q differ where points have unequal neighborhoods; both are in the gradient."""
    logits, _, image = some_batch()
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
    logits, _, image = some_batch()
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
