"""The layer on a GPU against the compiled core on the CPU, over awkward shapes."""

import numpy as np
import pytest

from torch_device import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from crfield import Bilateral, Diagonal, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield import nn as crf_nn

SHAPES = [  # images, labels, channels, grid
    (1, 2, 1, (61, 47)),
    (4, 5, 3, (33, 71)),
    (2, 21, 3, (50, 51)),
    (1, 150, 3, (48, 49)),
    (1, 3, 2, (1, 2500)),
    (2, 2, 1, (3001,)),
    (2, 4, 5, (53, 44)),
    (1, 3, 1, (13, 17, 19)),
    (3, 33, 3, (7, 19, 18)),
]
TERMS = (
    Pairwise(Spatial(3.0), Potts(2.0)), Pairwise(Bilateral(20.0, 25.0), Potts(4.0), weight=0.8)
)


def smooth(*shape, seed):
    """Random values that change slowly over the grid, as photos do."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape)
    for axis in range(2, len(shape)):
        values = np.cumsum(values, axis) / np.sqrt(np.arange(1, shape[axis] + 1)).reshape(
            [-1 if a == axis else 1 for a in range(len(shape))]
        )
    return torch.from_numpy(values)


def make_inputs(n_images, n_labels, n_channels, grid, seed=0):
    logits = 2.0 * smooth(n_images, n_labels, *grid, seed=seed)
    image = 128.0 + 40.0 * smooth(n_images, n_channels, *grid, seed=seed + 1)
    return logits.float(), image.clamp(0, 255).round().float()


def run(layer, logits, image, device, dtype):
    """The result and its gradient by everything, as float64 on the CPU."""
    layer = layer.to(device, dtype)
    layer.zero_grad()
    x = logits.detach().clone().to(device, dtype).requires_grad_()
    picture = image.detach().clone().to(device, dtype).requires_grad_()
    out = layer(x, picture)
    weights = torch.sin(torch.arange(out.numel(), dtype=torch.float64) * 0.7).reshape(out.shape)
    (out * weights.to(out)).sum().backward()
    found = {"out": out, "logits": x.grad, "image": picture.grad}
    found.update({name: p.grad for name, p in layer.named_parameters()})
    return {name: value.detach().double().cpu() for name, value in found.items()}


def relative(found, wanted):
    return float((found - wanted).norm()) / max(float(wanted.norm()), 1e-12)


def check(layer, inputs, dtype, *, rest, **limits):
    """The GPU's relative errors in float32 against the CPU in `dtype`; what both found.

    limits : of some results by name; `rest` is that of all others.
    """
    wanted = run(layer, *inputs, "cpu", dtype)
    found = run(layer, *inputs, "cuda", torch.float32)
    # A parameter's gradient sums over all logits, and rounding with it.
    least = float(wanted["logits"].norm())
    for name, value in wanted.items():
        scale = max(float(value.norm()), 0.0 if name in ("out", "logits", "image") else least)
        error = float((found[name] - value).norm()) / scale
        assert error < limits.get(name, rest), (name, error)
    return wanted, found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("filter", ["lattice", "auto"])
def test_lattice_and_grid_agree_with_the_core(shape, filter):
    layer = crf_nn.DenseCRF(
        shape[1], TERMS, inference=Inference(filter=filter), output="marginals"
    )
    inputs = make_inputs(*shape)
    wanted, found = check(layer, inputs, torch.float32, out=1e-4, logits=1e-3, rest=1e-2)
    assert float((found["out"] - wanted["out"]).abs().max()) < 1e-3


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_sums_agree_with_float64(shape):
    layer = crf_nn.DenseCRF(
        shape[1], TERMS, inference=Inference(filter="exact", max_iter=3), output="marginals"
    )
    check(layer, make_inputs(*shape), torch.float64, out=1e-3, rest=5e-3)


@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
@pytest.mark.parametrize("output", ["logits", "marginals"])
@pytest.mark.parametrize("gradient", ["unrolled", "implicit"])
def test_every_algorithm(algorithm, output, gradient):
    terms = [*TERMS, Pairwise(Spatial([4.0, 5.0]), Diagonal([1.0, 0.5, 2.0, 1.0]))]
    layer = crf_nn.DenseCRF(
        4, terms, output=output, gradient=gradient,
        inference=Inference(algorithm, max_iter=5 if gradient == "unrolled" else 50),
    )
    inputs = make_inputs(2, 4, 3, (49, 52))
    check(layer, inputs, torch.float64, out=1e-3, logits=1e-2, rest=5e-2)


def test_matrices_of_compatibilities():
    terms = [Pairwise(Bilateral(20.0, 25.0), Symmetric.l1(4, 2.0))]
    layer = crf_nn.DenseCRF(4, terms, output="marginals")
    check(layer, make_inputs(2, 4, 3, (49, 52)), torch.float64, rest=1e-2)


def test_deterministic_runs_are_equal_to_the_bit():
    logits, image = make_inputs(2, 21, 3, (60, 70))
    layer = crf_nn.DenseCRF(21, TERMS, deterministic=True)
    first = run(layer, logits, image, "cuda", torch.float32)
    for _ in range(3):
        again = run(layer, logits, image, "cuda", torch.float32)
        assert torch.equal(first["out"], again["out"])
        assert torch.equal(first["logits"], again["logits"])


def test_compiled_graphs_agree():
    logits, image = make_inputs(2, 5, 3, (49, 52))
    layer = crf_nn.DenseCRF(5, TERMS)
    wanted = run(layer, logits, image, "cuda", torch.float32)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = logits.cuda().requires_grad_()
    out = compiled(x, image.cuda())
    assert relative(out.detach().double().cpu(), wanted["out"]) < 1e-4


def test_half_precision():
    logits, image = make_inputs(2, 5, 3, (49, 52))
    layer = crf_nn.DenseCRF(5, TERMS, output="marginals").cuda()
    with torch.autocast("cuda"):
        found = layer(logits.cuda().half(), image.cuda()).detach()
    assert found.dtype == torch.float16
    wanted = layer(logits.cuda().half().float(), image.cuda()).detach()
    assert float((found.float() - wanted).abs().max()) < 2e-3


def test_recorded_runs_agree():
    """From the third run of one size on the kernels are replayed, with other images in them."""
    layer = crf_nn.DenseCRF(5, TERMS, output="marginals")
    for seed in range(6):
        logits, image = make_inputs(2, 5, 3, (49, 52), seed=seed)
        wanted, _ = check(layer, (logits, image), torch.float32, out=1e-4, rest=1e-2)
        with torch.no_grad():
            again = layer.cuda()(logits.cuda(), image.cuda())
        assert relative(again.double().cpu(), wanted["out"]) < 1e-4
