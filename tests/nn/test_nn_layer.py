"""The CRF layer: gradients against central differences, and agreement with the NumPy model."""

import dataclasses
import gc
import io
import subprocess
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest

from torch_device import torch

# isort: split
from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    FeatureKernel,
    Inference,
    InputError,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
)
from crfield import nn as crf_nn
from crfield.dense.problem import solve_self_pairs
from crfield.nn.dense import function as _function
from crfield.nn.dense.operators import build_operator
from crfield.nn.dense.run import NativeRun, TensorRun
from refusal import refusal

ALGORITHMS = ("concave", "cccp", "parallel")
MATRIX = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.5], [2.0, 1.5, 0.0]])
EXACT = Inference(filter="exact", max_iter=2)
POTTS_TERMS = (
    Pairwise(Spatial(2.0), Potts(1.5)), Pairwise(Bilateral(4.0, 60.0), Potts(2.0), weight=0.7)
)


def some_batch(n_labels=3, grid=(4, 5), n_images=2, n_channels=3, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(n_images, n_labels, *grid, generator=rng, dtype=torch.float64)
    image = 255 * torch.rand(n_images, n_channels, *grid, generator=rng, dtype=torch.float64)
    return logits.to(dtype), image.to(dtype)


def check_gradients(layer, *inputs, fast=False, **keywords):
    """gradcheck by the inputs and every parameter; `fast` in random directions only."""
    names = [name for name, _ in layer.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in layer.parameters()]
    inputs = [x if x is None else x.detach().clone().requires_grad_() for x in inputs]

    def call(*everything):
        given = everything[: len(inputs)]
        parameters = dict(zip(names, everything[len(inputs) :], strict=True))
        return torch.func.functional_call(layer, parameters, given, keywords)

    assert torch.autograd.gradcheck(
        call, (*inputs, *values), atol=1e-7, rtol=1e-5, fast_mode=fast
    )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("output", ["logits", "marginals"])
@pytest.mark.parametrize("gradient", ["unrolled", "implicit"])
def test_gradients_by_everything(algorithm, output, gradient):
    # A fixed point needs enough updates to be one.
    max_iter = 3 if gradient == "unrolled" else 60
    layer = crf_nn.DenseCRF(
        3, POTTS_TERMS, inference=Inference(algorithm, "exact", max_iter=max_iter), output=output,
        gradient=gradient,
    ).double()
    check_gradients(layer, *some_batch(grid=(3, 4)), fast=gradient == "implicit")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["concave", "parallel"])
def test_gradients_by_a_matrix_and_covariances(algorithm):
    covariance = np.diag([9.0, 9.0, 2500.0, 2500.0, 2500.0]) + 0.5
    terms = [
        Pairwise(Spatial(np.array([[4.0, 1.0], [1.0, 3.0]])), Symmetric(MATRIX)),
        Pairwise(Bilateral(covariance=covariance), Diagonal([1.0, 2.0, 0.5])),
        Pairwise(Spatial([2.0, 3.0], normalization="none"), Potts(0.1)),
    ]
    inference = Inference(algorithm, "exact", max_iter=2)
    layer = crf_nn.DenseCRF(3, terms, inference=inference).double()
    check_gradients(layer, *some_batch(n_images=1))


def test_gradients_by_unsymmetric_kernels():
    terms = [
        Pairwise(Spatial(2.0, normalization=normalization), Potts(1.0))
        for normalization in ("before", "after")
    ]
    inference = Inference("parallel", "exact", max_iter=2)
    layer = crf_nn.DenseCRF(2, terms, inference=inference).double()
    check_gradients(layer, some_batch(2)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "n_channels"), [((7,), 1), ((2, 3, 3), 2)])
def test_gradients_in_one_and_three_dimensions(grid, n_channels):
    terms = [Pairwise(Bilateral(3.0, 70.0), Potts(2.0))]
    layer = crf_nn.DenseCRF(
        2, terms, inference=EXACT, spacing=[1.0, 2.0, 0.5][: len(grid)]
    ).double()
    check_gradients(layer, *some_batch(2, grid, n_channels=n_channels))


@pytest.mark.slow
def test_gradients_by_named_features():
    layer = crf_nn.DenseCRF(
        2, [Pairwise(FeatureKernel("depth", 2, sigma=[0.5, 1.0]), Potts(2.0))], inference=EXACT,
    ).double()
    logits, _ = some_batch(2)
    depth = torch.randn(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)

    def call(logits, depth):
        return layer(logits, features={"depth": depth})

    assert torch.autograd.gradcheck(call, (logits.requires_grad_(), depth))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradients_through_the_lattice(algorithm):
    """Piecewise smooth: the seed keeps the points away from the borders of their simplices."""
    terms = [Pairwise(Spatial(2.0), Potts(1.0)), Pairwise(Bilateral(4.0, 60.0), Potts(2.0))]
    inference = Inference(algorithm, "lattice", max_iter=2)
    layer = crf_nn.DenseCRF(3, terms, inference=inference).double()
    logits, image = some_batch()
    # Positions themselves lie on borders; a width that no multiple of hits moves them off.
    with torch.no_grad():
        layer.terms[0].sigma += 0.0137
        layer.terms[1].sigma_xy += 0.0411
    check_gradients(layer, logits, image)


@pytest.mark.slow
def test_broken_gradient_is_noticed(monkeypatch):
    layer = crf_nn.DenseCRF(3, POTTS_TERMS, inference=EXACT).double()
    whole = NativeRun.backward

    def halved(self, given, widths):
        found = whole(self, given, widths)
        found.compatibility = [0.5 * g for g in found.compatibility]
        return found

    monkeypatch.setattr(NativeRun, "backward", halved)
    with pytest.raises(RuntimeError, match="Jacobian"):
        check_gradients(layer, *some_batch(grid=(3, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "lattice", "exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_numbers_as_the_model(method, dtype):
    model = DenseCRF(3, [*POTTS_TERMS, Pairwise(Bilateral(9, 30, color_space="lab"), Potts(1.0))])
    layer = crf_nn.DenseCRF.from_model(
        model, inference=Inference(filter=method), output="marginals"
    ).to(dtype)
    logits, image = some_batch(grid=(48, 50), dtype=dtype)
    found = layer(logits, image)
    for k in range(2):
        wanted = model.infer(
            image[k].permute(1, 2, 0).numpy(), -logits[k].permute(1, 2, 0).numpy(), filter=method,
            max_iter=5, tol=0.0, check=False,
        )
        np.testing.assert_allclose(
            found[k].detach().permute(1, 2, 0).numpy(), wanted.marginals,
            atol=1e-5 if dtype == torch.float32 else 1e-12,
        )


def test_to_model_and_back():
    terms = [
        Pairwise(Spatial([2.0, 3.0]), Diagonal([1.0, 2.0, 0.5]), weight=0.5),
        Pairwise(Bilateral(covariance=np.eye(5) + 0.2), Symmetric(MATRIX)),
        Pairwise(FeatureKernel("depth", 2, sigma=0.5, normalization="none"), Potts(2.0)),
    ]
    layer = crf_nn.DenseCRF.from_model(DenseCRF(3, terms)).double()
    model = layer.to_model()
    for before, after in zip(terms, model.terms, strict=True):
        assert after.weight == pytest.approx(before.weight, rel=1e-6)
        assert after.kernel.normalization == before.kernel.normalization
        for name in before.kernel.array_fields:
            if getattr(before.kernel, name) is not None:
                np.testing.assert_allclose(
                    getattr(after.kernel, name), getattr(before.kernel, name), rtol=1e-5
                )
        np.testing.assert_allclose(
            after.compatibility.matrix(3), before.compatibility.project(3).values
            if isinstance(before.compatibility, Symmetric) else before.compatibility.matrix(3),
            atol=1e-6,
        )
    assert (model.algorithm, model.max_iter) == ("concave", 5)
    again = crf_nn.DenseCRF.from_model(
        replace(model, max_iter=2), inference=Inference("parallel")
    )
    assert (again.inference.algorithm, again.inference.max_iter) == ("parallel", 2)
    again = crf_nn.DenseCRF.from_model(model).double()
    for a, b in zip(layer.parameters(), again.parameters(), strict=True):
        np.testing.assert_allclose(a.detach(), b.detach(), atol=1e-6)


def run_both(layer, logits, image, given):
    """The same run on the compiled core and on tensors: marginals and gradients."""
    unary, features, compatibilities, settings = layer.prepare(logits, image, None)
    inputs = [[x.detach() for x in part] for part in (features, compatibilities)]
    unary = unary.detach()
    operators = [
        build_operator(values, term, settings, len(unary), unary.dtype)
        for values, term in zip(inputs[0], settings.terms, strict=True)
    ]
    native = NativeRun(unary, *inputs, settings, keep=True)
    tensor = TensorRun(unary, operators, inputs[1], settings, keep=True)
    widths = [True] * len(features)
    return (native, native.backward(given, widths)), (tensor, tensor.backward(given, widths))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("method", ["exact", "auto", "lattice"])
@pytest.mark.parametrize("output", ["logits", "marginals"])
def test_tensor_runs_agree_with_the_compiled_core(algorithm, method, output):
    terms = [*POTTS_TERMS, Pairwise(Spatial([3.0, 4.0]), Diagonal([1.0, 0.5, 2.0]))]
    layer = crf_nn.DenseCRF(
        3, terms, inference=Inference(algorithm, method, max_iter=3), output=output
    ).double()
    logits, image = some_batch(grid=(49, 43) if method == "auto" else (9, 11))
    given = torch.randn(2, logits[0, 0].numel(), 3, dtype=torch.float64)
    (native, wanted), (tensor, found) = run_both(layer, logits, image, given)
    torch.testing.assert_close(tensor.marginals, native.marginals, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(found.unary, wanted.unary, atol=1e-9, rtol=1e-7)
    for a, b in zip(found.compatibility, wanted.compatibility, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-7)
    for a, b in zip(found.features, wanted.features, strict=True):
        torch.testing.assert_close(a.reshape(b.shape), b, atol=1e-8, rtol=1e-6)


def test_self_pairs_are_solved():
    energy = torch.randn(50, 7, dtype=torch.float64) * 20
    for alpha in (0.0, 1e-3, 0.5, 30.0, 1e4):
        q = solve_self_pairs(energy, torch.full_like(energy, alpha))
        assert torch.allclose(q.sum(1), torch.ones(50, dtype=q.dtype))
        level = q.clamp_min(1e-300).log() + alpha * q + energy
        large = q > 1e-12
        spread = [
            float(row[kept].max() - row[kept].min())
            for row, kept in zip(level, large, strict=True)
        ]
        assert max(spread) < 1e-6 * (1 + alpha)


def test_implicit_gradients_far_from_a_fixed_point_are_refused():
    terms = [Pairwise(Spatial(3.0), Potts(8.0)), Pairwise(Bilateral(20.0, 60.0), Potts(10.0))]
    layer = crf_nn.DenseCRF(3, terms, inference=Inference(max_iter=1), gradient="implicit")
    logits, image = some_batch(grid=(12, 13), dtype=torch.float32)
    with pytest.raises(RuntimeError, match="not reached a fixed point"):
        layer((0.1 * logits).requires_grad_(), image).square().sum().backward()


def test_nothing_is_remembered_that_has_changed():
    """`.data` and fused optimizers write to parameters without a trace."""
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    logits, image = some_batch(dtype=torch.float32)
    for change in (
        lambda: layer.terms[0].weight.data.add_(1.0), lambda: setattr(layer, "spacing", (3.0,)),
        lambda: setattr(layer, "inference", Inference("cccp", max_iter=5)),
    ):
        with torch.no_grad():
            before = layer(logits, image)
        change()
        with torch.no_grad():
            after = layer(logits, image)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, layer(logits, image).detach(), rtol=0, atol=0)


def test_inference_mode():
    terms = [Pairwise(Spatial(3.0), Potts(1.0))]
    layer = crf_nn.DenseCRF(2, terms, output="marginals")
    logits = torch.randn(1, 2, 60, 61)
    with torch.inference_mode():
        found = layer(logits)
        _, features, _, settings = layer.prepare(logits, None, None)
        for _ in range(2):  # the second one is remembered
            build_operator(features[0], settings.terms[0], settings, 1, torch.float32)
    torch.testing.assert_close(found.clone(), layer(logits).detach())


def test_operators_of_coordinates_are_remembered_until_these_change():
    layer = crf_nn.DenseCRF(2, [Pairwise(Spatial(3.0), Potts(1.0))]).double()
    _, features, _, settings = layer.prepare(torch.zeros(1, 2, 60, 61).double(), None, None)
    coordinates = features[0].detach().clone()

    def build(values, n_images=1, dtype=torch.float64):
        return build_operator(values, settings.terms[0], settings, n_images, dtype)

    before = build(coordinates)
    assert build(coordinates).plain is before.plain
    old = before.diagonal()
    coordinates *= 1.5  # in place
    after = build(coordinates)
    assert not torch.allclose(after.diagonal(), old)
    wanted = build(coordinates.clone()).diagonal()
    torch.testing.assert_close(after.diagonal(), wanted, rtol=0, atol=0)
    for other in ({"n_images": 2}, {"dtype": torch.float32}):
        assert build(coordinates, **other).plain is not after.plain


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16, torch.uint16])
def test_images_of_whole_numbers_have_the_scale_of_arrays(dtype):
    layer = crf_nn.DenseCRF(3, POTTS_TERMS, output="marginals")
    logits, image = some_batch(dtype=torch.float32)
    picture = (image > 128).to(dtype) if dtype == torch.bool else image.to(torch.int32).to(dtype)
    found = layer(logits, picture)[0].detach().permute(1, 2, 0).numpy()
    wanted = layer.to_model().infer(
        picture[0].permute(1, 2, 0).numpy(), -logits[0].permute(1, 2, 0).numpy(), max_iter=5, tol=0
    )
    np.testing.assert_allclose(found, wanted.marginals, atol=1e-5)


def test_the_scale_of_an_image_does_not_depend_on_the_others_of_its_batch():
    """Floats within [0, 1] beside floats up to 255: each image is read as it is alone."""
    layer = crf_nn.DenseCRF(3, POTTS_TERMS, inference=EXACT, output="marginals").double()
    logits, image = some_batch()
    mixed = torch.stack([image[0] / 255, image[1]])
    found = layer(logits, mixed)
    for one in range(2):
        part = slice(one, one + 1)
        torch.testing.assert_close(found[part], layer(logits[part], mixed[part]))
        torch.testing.assert_close(found[part], layer(logits[part], image[part]))


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["unrolled", "implicit"])
def test_no_updates_at_all(gradient):
    layer = crf_nn.DenseCRF(
        3, POTTS_TERMS, inference=Inference(max_iter=0), gradient=gradient
    ).double()
    check_gradients(layer, *some_batch(n_images=1), fast=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    logits, image = some_batch()
    compiled(logits.requires_grad_(), image).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_numbers_that_are_none_stay_none():
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    logits, image = some_batch(dtype=torch.float32)
    logits[0, 1, 2, 3] = torch.nan
    logits[1, 0, 1, 1] = torch.inf
    logits[1, 2, 0, 0] = -torch.inf  # a label that a pixel cannot have
    found = layer(logits.requires_grad_(), image)
    assert found[0, :, 2, 3].isnan().all()
    assert found[1, :, 1, 1].isnan().all()
    assert found.isnan().sum() == 6
    found.sum().backward()
    assert logits.grad.isnan().any()


def test_widths_that_do_not_fit_are_refused():
    logits, image = some_batch(dtype=torch.float32)
    for kernel in (
        Spatial([1.0, 2.0, 3.0]), Bilateral(3.0, [1.0, 2.0]), Bilateral([1.0, 2.0, 3.0], 4.0),
        Bilateral(covariance=np.eye(4)),
    ):
        with pytest.raises(InputError, match="widths must be one number"):
            crf_nn.DenseCRF(3, [Pairwise(kernel, Potts(1.0))])(logits, image)


def test_a_run_is_let_go_after_the_way_back():
    layer = crf_nn.DenseCRF(3, POTTS_TERMS, output="marginals")
    logits, image = some_batch(dtype=torch.float32)
    made = []
    start = NativeRun.__init__

    def watched(self, *arguments, **keywords):
        start(self, *arguments, **keywords)
        made.append(weakref.ref(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeRun, "__init__", watched)
        found = layer(logits.requires_grad_(), image)
        loss = found.square().sum()
        loss.backward(retain_graph=True)
        assert made[0]() is not None
        loss.backward()
    gc.collect()
    assert made[0]() is None
    with torch.autograd.graph.save_on_cpu():
        again = layer(logits, image).square().sum()
    logits.grad = None
    again.backward()
    assert torch.isfinite(logits.grad).all()


def test_results_may_be_written_to():
    logits, image = some_batch(dtype=torch.float32)
    for gradient in ("unrolled", "implicit"):
        layer = crf_nn.DenseCRF(
            3, [Pairwise(Spatial(2.0), Potts(0.5))], output="marginals", gradient=gradient,
            inference=Inference(max_iter=20),
        )
        layer(logits.clone().requires_grad_(), image).add_(0.3).sum().backward()


def test_half_precision_parameters():
    layer = crf_nn.DenseCRF(3, [Pairwise(Spatial(2.0), Symmetric(MATRIX))]).half()
    assert torch.isfinite(layer(some_batch(dtype=torch.float32)[0])).all()


def test_computing_again_changes_nothing():
    logits, image = some_batch(dtype=torch.float32)
    found = []
    for recompute in (False, True):
        layer = crf_nn.DenseCRF(3, POTTS_TERMS, recompute=recompute)
        x = logits.clone().requires_grad_()
        layer(x, image).square().sum().backward()
        found.append([x.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_half_precision_in_and_out():
    layer = crf_nn.DenseCRF(3, POTTS_TERMS, output="marginals")
    logits, image = some_batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(logits.bfloat16().requires_grad_(), image)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.float(), layer(logits.bfloat16().float(), image), atol=5e-3, rtol=0
    )
    found.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_state_goes_to_a_file_and_back():
    layer, other = crf_nn.DenseCRF(3, POTTS_TERMS), crf_nn.DenseCRF(3, POTTS_TERMS)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    logits, image = some_batch(dtype=torch.float32)
    torch.testing.assert_close(layer(logits, image), other(logits, image), rtol=0, atol=0)


@pytest.mark.slow
def test_compiled_graphs_agree():
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    logits, image = some_batch(dtype=torch.float32)
    found = []
    for module in (layer, compiled):
        layer.zero_grad()
        x = logits.clone().requires_grad_()
        out = module(x, image)
        out.square().sum().backward()
        found.append([out.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_compiled_inference_keeps_nothing():
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    logits, image = some_batch(dtype=torch.float32)
    _function._WAITING.clear()
    with torch.no_grad():
        torch.testing.assert_close(compiled(logits, image), layer(logits, image))
    assert not _function._WAITING


@pytest.mark.slow
def test_many_compiled_runs_before_the_way_back():
    """More than wait: the others are computed again."""
    layer = torch.compile(
        crf_nn.DenseCRF(2, POTTS_TERMS, inference=Inference(max_iter=2)), backend="aot_eager",
        fullgraph=True,
    )
    batches = [some_batch(2, seed=k, dtype=torch.float32) for k in range(4)]
    inputs = [logits.requires_grad_() for logits, _ in batches]
    outputs = [layer(x, image) for x, (_, image) in zip(inputs, batches, strict=True)]
    sum(out.square().sum() for out in outputs).backward()
    plain = crf_nn.DenseCRF(2, POTTS_TERMS, inference=Inference(max_iter=2))
    for x, (_, image) in zip(inputs, batches, strict=True):
        y = x.detach().clone().requires_grad_()
        plain(y, image).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


_DISTRIBUTED = """
import sys, torch
from crfield import Inference, Pairwise, Potts, Spatial
from crfield.nn import DenseCRF
rank = int(sys.argv[1])
torch.distributed.init_process_group(
    "gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
layer = DenseCRF(2, [Pairwise(Spatial(2.0), Potts(1.0))], inference=Inference(threads=1))
wrapped = torch.nn.parallel.DistributedDataParallel(layer)
logits = torch.randn(2, 2, 5, 6, generator=torch.Generator().manual_seed(0))
wrapped(logits[rank : rank + 1]).square().sum().backward()
shared = [p.grad.clone() for p in layer.parameters()]
layer.zero_grad()
(layer(logits).square().sum() / 2).backward()
for a, b in zip(shared, layer.parameters()):
    torch.testing.assert_close(a, b.grad, rtol=1e-4, atol=1e-5)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_share_gradients(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch cannot run on several processes")
    command = [sys.executable, "-c", _DISTRIBUTED]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


@pytest.mark.slow
def test_learns_the_widths_it_was_made_with():
    """Gradient descent on the output of another layer finds that layer's parameters."""
    logits, image = some_batch(2, (12, 14), dtype=torch.float32)
    inference = Inference(filter="exact")
    truth = crf_nn.DenseCRF(
        2, [Pairwise(Bilateral(3.0, 50.0), Potts(2.0))], inference=inference
    )
    wanted = truth(logits, image).exp().detach()
    layer = crf_nn.DenseCRF(
        2, [Pairwise(Bilateral(5.0, 80.0), Potts(1.0))], inference=inference,
        learn=("compatibility", "kernel"),
    )
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = -(wanted * layer(logits, image)).sum(1).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = layer.to_model().terms[0]
    assert found.kernel.sigma_xy == pytest.approx(3.0, rel=0.1)
    assert found.kernel.sigma_color == pytest.approx(50.0, rel=0.1)
    assert found.compatibility.weight == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("change", "message"), [
    ({"inference": 5}, "inference"),
    ({"inference": Inference("sequential")}, "algorithm"),
    ({"output": "probabilities"}, "output"),
    ({"gradient": "none"}, "gradient"),
    ({"learn": ("everything",)}, "learn"),
    ({"spacing": -1.0}, "spacing"),
    ({"terms": [Pairwise(Spatial(2.0), Potts(-1.0))]}, "negative"),
    ({"terms": [Pairwise(Spatial(2.0), Potts(1.0), weight=-1.0)]}, "negative"),
    ({"terms": [Pairwise(Spatial(2.0, shape="tent"), Potts(1.0))]}, "Gaussian"),
    ({"terms": [Pairwise(Spatial(2.0, normalization="before"), Potts(1.0))]}, "guarantee"),
])
def test_bad_arguments_are_refused(change, message):
    assert message in refusal(crf_nn.DenseCRF, 3, **change)


def test_bad_input_is_refused():
    layer = crf_nn.DenseCRF(3, POTTS_TERMS)
    logits, image = some_batch(dtype=torch.float32)
    assert "image must be given" in refusal(layer, logits)
    assert "image must have shape" in refusal(layer, logits, image[..., :-1])
    assert "logits must have shape" in refusal(layer, logits[:, :2], image)
    assert "floating-point" in refusal(layer, logits.long(), image)
    with pytest.raises(InputError, match="recalibration"):
        crf_nn.DenseCRF.from_model(
            dataclasses.replace(DenseCRF(3, POTTS_TERMS), recalibration=np.eye(3, 4))
        )
    named = crf_nn.DenseCRF(3, [Pairwise(FeatureKernel("depth", 1), Potts(1.0))])
    assert "features must hold 'depth'" in refusal(named, logits)
    assert "features['depth'] must have shape" in refusal(named, logits, features={"depth": image})


def test_other_shapes_of_kernels_work_where_they_are_not_learned():
    layer = crf_nn.DenseCRF(
        3, [Pairwise(Spatial(2.0, shape="tent"), Potts(1.0))], learn=("compatibility",)
    )
    logits, _ = some_batch(dtype=torch.float32)
    layer(logits).sum().backward()
    assert torch.isfinite(layer.terms[0].compatibility.grad)


_WITHOUT = """
import sys
sys.modules["torch"] = None
import crfield
try:
    import crfield.nn
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_torch_the_extra_is_named():
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True
    )
    assert "pip install 'crfield[torch]'" in found.stdout


@pytest.mark.parametrize(("change", "message"), [
    ({"max_iter": -1}, "max_iter"), ({"algorithm": "fast"}, "algorithm"),
    ({"filter": "grid"}, "filter"), ({"filter_tol": 2.0}, "filter_tol"),
])
def test_bad_settings_of_inference_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        crf_nn.DenseCRF(3, inference=Inference(**change))
