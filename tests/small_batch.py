"""Batches of 2 images with 4 x 5 pixels on which every argument of a layer has its right value."""

import numpy as np

from crfield import Bilateral, Pairwise, Potts, Spatial
from torch_device import torch

MATRIX = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.5], [2.0, 1.5, 0.0]])
POTTS_TERMS = (
    Pairwise(Spatial(2.0), Potts(1.5)), Pairwise(Bilateral(4.0, 60.0), Potts(2.0), weight=0.7)
)
LABELS = torch.randint(0, 3, (2, 4, 5), generator=torch.Generator().manual_seed(0))


def some_batch(n_labels=3, grid=(4, 5), n_images=2, n_channels=3, seed=0, dtype=torch.float64):
    """Logits and images."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(n_images, n_labels, *grid, generator=rng, dtype=torch.float64)
    image = 255 * torch.rand(n_images, n_channels, *grid, generator=rng, dtype=torch.float64)
    return logits.to(dtype), image.to(dtype)


def check_gradients(module, *inputs, fast=False):
    """gradcheck by the inputs and every parameter; `fast` in random directions only."""
    names = [name for name, _ in module.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in module.parameters()]
    inputs = [x.detach().clone().requires_grad_() for x in inputs]

    def call(*everything):
        given = everything[: len(inputs)]
        parameters = dict(zip(names, everything[len(inputs) :], strict=True))
        return torch.func.functional_call(module, parameters, given)

    assert torch.autograd.gradcheck(
        call, (*inputs, *values), atol=1e-7, rtol=1e-5, fast_mode=fast
    )
