"""The CRF layer: gradients against central differences, and agreement with the NumPy model."""

import gc
import io
import math
import subprocess
import sys
import warnings
import weakref
from dataclasses import replace

import numpy as np
import pytest

from torch_device import DEVICE, torch

# isort: split
from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    FeatureKernel,
    Inference,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
    refine,
)
from crfield import nn as crf_nn
from crfield.dense.problem import solve_self_pairs
from crfield.nn.dense import function as _function
from crfield.nn.dense.operators import build_operator
from crfield.nn.dense.run import NativeRun, TensorRun
from refusal import refusal
from small_batch import LABELS, MATRIX, POTTS_TERMS, check_gradients, some_batch

ALGORITHMS = ("concave", "cccp", "parallel")
EXACT = Inference(filter="exact", max_iter=2)


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
    kernels = [Spatial(2.0, normalization=normalization) for normalization in ("before", "after")]
    terms = [Pairwise(kernel, Potts(1.0)) for kernel in kernels]
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
    logits, depth = (x.requires_grad_() for x in some_batch(2, n_channels=2))
    assert torch.autograd.gradcheck(
        lambda logits, depth: layer(logits, features={"depth": depth / 100}), (logits, depth)
    )


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
    torch.testing.assert_close(layer.state_dict(), again.state_dict(), rtol=1e-7, atol=1e-6)


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
    torch.testing.assert_close(found.compatibility, wanted.compatibility, atol=1e-8, rtol=1e-7)
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


def in_format(x, channels_last):
    """The tensor with its labels first or last in memory, where torch has a name for that."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = last.get(x.ndim) if channels_last else None
    return x.contiguous(memory_format=wanted or torch.contiguous_format)


@pytest.mark.parametrize("output", ["logits", "marginals"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("grid", [(20,), (4, 5), (2, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_results_lie_in_memory_as_the_logits_do(output, channels_last, grid, dtype):
    logits, image = some_batch(grid=grid, dtype=dtype)
    logits, image = in_format(logits, channels_last).to(DEVICE), image.float().to(DEVICE)
    for inference in (EXACT, Inference(max_iter=2)):
        layer = crf_nn.DenseCRF(3, POTTS_TERMS, inference=inference, output=output).to(DEVICE)
        assert layer(logits, image).stride() == logits.stride()


@pytest.mark.parametrize("channels_last", [False, True])
def test_losses_that_need_contiguous_results(channels_last):
    logits, image = some_batch(dtype=torch.float32)
    logits.requires_grad_()
    layer = crf_nn.DenseCRF(3, POTTS_TERMS, inference=EXACT, output="marginals")
    expected = torch.autograd.grad(
        torch.nn.functional.cross_entropy(layer(logits, image).log(), LABELS), logits
    )[0]
    q = layer(in_format(logits, channels_last), image)
    # torch's own NLLLoss wants its input contiguous.
    torch.nn.NLLLoss()(q.contiguous().log() if channels_last else q.log(), LABELS).backward()
    torch.testing.assert_close(logits.grad, expected)
    if not channels_last:
        assert q.view(len(q), -1).shape == (2, 60)


def test_structured_layers_give_contiguous_results():
    costs = torch.randn(2, 5, 3)
    for layer in (crf_nn.ChainCRF(3), crf_nn.TreeCRF([-1, 0, 0, 1, 1], 3)):
        assert layer(costs).is_contiguous()
    assert crf_nn.GridCRF(3)(torch.randn(2, 3, 5, 4)).is_contiguous()


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
    torch.testing.assert_close(*found, rtol=0, atol=0)


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
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


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
import os, sys, torch
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
torch.distributed.barrier()
# PyTorch 2.13 aborts in one of five ends of such a process, with any layer.
os._exit(0)
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


def test_other_shapes_of_kernels_work_where_they_are_not_learned():
    layer = crf_nn.DenseCRF(
        3, [Pairwise(Spatial(2.0, shape="tent"), Potts(1.0))], learn=("compatibility",)
    )
    logits, _ = some_batch(dtype=torch.float32)
    layer(logits).sum().backward()
    assert torch.isfinite(layer.terms[0].compatibility.grad)


_WITHOUT = """
import sys
import warnings
sys.modules["torch"] = None
import crfield
try:
    import crfield.nn
except ModuleNotFoundError as error:
    print(error)
"""


def test_spacing_may_be_given_per_call():
    logits, image = torch.randn(1, 2, 4, 5, 6), torch.rand(1, 1, 4, 5, 6)
    terms = [Pairwise(Bilateral(2.0, 40.0), Potts(1.0))]
    fixed = crf_nn.DenseCRF(2, terms, spacing=(3.0, 1.0, 1.0))
    layer = crf_nn.DenseCRF(2, terms)
    apart = layer(logits, image, spacing=(3.0, 1.0, 1.0))
    torch.testing.assert_close(apart, fixed(logits, image), rtol=0, atol=0)
    torch.testing.assert_close(fixed(logits, image, spacing=1), layer(logits, image))
    assert (apart - layer(logits, image)).abs().max() > 1e-3
    energy = crf_nn.PairwiseEnergy(layer)
    assert energy(logits, image, spacing=3.0) != energy(logits, image)
    assert "spacing must be one number or 3" in refusal(layer, logits, image, spacing=(1.0, 2.0))


def test_default_terms_are_those_of_refine_for_images_of_this_size():
    logits, image = some_batch(grid=(100, 110), dtype=torch.float32)
    layer = crf_nn.DenseCRF(3, output="marginals", inference=Inference(tol=0.0, max_iter=3))
    given = logits[0].softmax(0).movedim(0, -1).numpy()
    expected = refine(image[0].movedim(0, -1).numpy(), given, tol=0.0, max_iter=3).marginals
    with torch.no_grad():
        found = layer(logits, image)[0].movedim(0, -1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("spacing", [None, (1.0, 2.5)])
def test_widths_grow_with_the_image_where_there_is_a_size(spacing):
    logits, image = some_batch(grid=(16, 24))
    sides = np.array([16.0, 24.0]) * (1.0 if spacing is None else spacing)
    factor = min(sides[1], 2.0 * sides[0]) / 8.0
    options = {"inference": EXACT, "spacing": spacing}
    terms = [Pairwise(Bilateral(2.0, 40.0), Potts(2.0))]
    wider = [Pairwise(Bilateral(2.0 * factor, 40.0), Potts(2.0))]
    sized = crf_nn.DenseCRF(3, terms, size=8.0, **options).double()
    torch.testing.assert_close(
        sized(logits, image), crf_nn.DenseCRF(3, wider, **options).double()(logits, image)
    )
    assert sized.to_model().size == 8.0
    assert crf_nn.DenseCRF(3, terms).to_model().size is None


def test_an_image_of_zero_mean_is_warned_of_once():
    logits, image = torch.randn(1, 2, 20, 20), torch.randn(1, 3, 20, 20)
    layer = crf_nn.DenseCRF(2)
    layer(logits, 255 * image.abs())  # which silences nothing
    with pytest.warns(UserWarning, match="image looks normalized to zero mean"):
        layer(logits, image)
    scaled = [Pairwise(Bilateral(5.0, 10.0, color_scale=58.0), Potts(1.0))]
    narrow = [Pairwise(Bilateral(5.0, 0.5), Potts(1.0))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(logits, image)
        crf_nn.DenseCRF(2)(logits, torch.rand(1, 3, 20, 20))
        crf_nn.DenseCRF(2, scaled)(logits, image)
        crf_nn.DenseCRF(2, narrow)(logits, image)


@pytest.mark.parametrize("call", [
    lambda: crf_nn.DenseCRF(2, [Pairwise(Spatial(2.0), Potts(0.0))]),
    lambda: crf_nn.DenseCRF(2)(torch.randn(1, 2, 8, 8), torch.randn(1, 3, 8, 8)),
    lambda: torch.nn.Sequential(
        torch.nn.Softmax(1), crf_nn.DenseCRF(2, [Pairwise(Spatial(2.0), Potts(1.0))])
    )(torch.randn(1, 2, 8, 8)),
    lambda: crf_nn.LogLikelihood()(torch.full((1, 2, 8, 8), 0.5), torch.zeros(1, 8, 8).long()),
])
def test_warnings_name_the_file_of_the_caller(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    assert [each.filename for each in found] == [__file__]


def test_a_layer_shows_the_widths_and_weights_that_it_has_now():
    layer = crf_nn.DenseCRF(21)
    with torch.no_grad():
        layer.terms[0].weight.fill_(math.log(2.0))
    assert "Pairwise(Spatial(3), Potts(3), weight=2)" in repr(layer)
    with torch.no_grad():
        layer.terms[0].weight.fill_(math.nan)
    assert "(Spatial, Potts)" in repr(layer)


def test_without_torch_the_package_is_named():
    found = subprocess.check_output([sys.executable, "-c", _WITHOUT], text=True)
    assert "pip install torch." in found


def test_the_size_that_widths_are_for_is_in_the_state_and_shown():
    terms = [Pairwise(Spatial(3.0), Potts(2.0))]
    given, default = crf_nn.DenseCRF(3, terms), crf_nn.DenseCRF(3, terms, size=40)
    logits, image = torch.randn(1, 3, 20, 30), torch.zeros(1, 3, 20, 30)
    expected = given(logits, image)
    assert not torch.equal(default(logits, image), expected)
    assert "size=40" in repr(default)
    assert "size" not in repr(given)
    default.load_state_dict(given.state_dict())
    assert torch.equal(default(logits, image), expected)
    given.load_state_dict(crf_nn.DenseCRF(3, terms, size=40).state_dict())
    assert given.size == 40.0
