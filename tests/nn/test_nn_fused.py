"""The fused kernels of a mean-field step against the readable run on tensors."""

import numpy as np
import pytest

from torch_device import DEVICE, torch

pytest.importorskip("triton")

from crfield import Bilateral, Diagonal, Inference, Pairwise, Potts, Spatial
from crfield import nn as crf_nn
from crfield.nn.dense.operators import build_operator
from crfield.nn.dense.passes import FusedRun
from crfield.nn.dense.run import TensorRun
from crfield.nn.ops.grid import triton as _grid_kernels
from crfield.nn.ops.grid.reference import Grid, GridLayout
from crfield.nn.ops.tables import steps as _step_kernels

TERMS = [Pairwise(Spatial(2.0), Potts(1.0)), Pairwise(Bilateral(4.0, 60.0), Potts(2.0))]


def both_runs(terms, shape, max_iter, *, recompute=False, output="marginals", filter="lattice"):
    """The readable run and the fused one on the same operators."""
    n_images, n_labels, n_channels, *grid = shape
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(2.0 * rng.normal(size=(n_images, n_labels, *grid))).to(DEVICE)
    image = torch.from_numpy(255.0 * rng.random((n_images, n_channels, *grid))).to(DEVICE)
    layer = crf_nn.DenseCRF(
        n_labels, terms, inference=Inference(filter=filter, max_iter=max_iter),
        recompute=recompute, output=output,
    ).to(DEVICE)
    given = torch.from_numpy(rng.normal(size=(n_images, int(np.prod(grid)), n_labels))).to(DEVICE)
    unary, features, compatibilities, settings = layer.prepare(logits.float(), image.float(), None)
    unary, given = unary.detach(), given.float()
    compatibilities = [c.detach() for c in compatibilities]
    operators = [
        build_operator(f.detach(), term, settings, n_images, torch.float32)
        for f, term in zip(features, settings.terms, strict=True)
    ]
    assert FusedRun.covers(unary, operators, compatibilities, settings)
    runs = [
        kind(unary, operators, compatibilities, settings, keep=True)
        for kind in (TensorRun, FusedRun)
    ]
    return [(run, run.backward(given, [True] * len(terms))) for run in runs]


def check(results, tolerance=2e-4):
    (readable, wanted), (fused, found) = results
    for name, ours, theirs, allowed in (
        ("marginals", [fused.marginals], [readable.marginals], tolerance),
        ("unary", [found.unary], [wanted.unary], tolerance),
        # Sums over all points of numbers of both signs lose digits in float32.
        ("compatibility", found.compatibility, wanted.compatibility, 10 * tolerance),
        ("features", found.features, wanted.features, tolerance),
    ):
        for m, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if a is not None or b is not None:
                error = float((a - b).norm() / b.norm().clamp_min(1e-3))
                assert error < allowed, (name, m, error)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [
    (1, 2, 3, 5, 7), (2, 5, 1, 5, 4), (1, 21, 3, 3, 7), (1, 3, 2, 1, 13), (2, 2, 1, 17),
    (1, 4, 1, 2, 3, 4), (1, 33, 1, 2, 3),
])
def test_two_terms(shape):
    check(both_runs(TERMS, shape, 2))


@pytest.mark.slow
@pytest.mark.parametrize("output", ["logits", "marginals"])
@pytest.mark.parametrize("recompute", [False, True])
def test_one_term_and_options(output, recompute):
    terms = [Pairwise(Bilateral(4.0, 60.0, normalization="none"), Diagonal([0.1, 0.2, 0.05]))]
    check(both_runs(terms, (2, 3, 1, 3, 4), 2, output=output, recompute=recompute))


def test_no_iterations():
    check(both_runs([Pairwise(Spatial(2.0), Potts(1.0))], (1, 3, 1, 4, 5), 0))


@pytest.mark.slow
def test_grid_of_nodes_and_lattice_together(monkeypatch):
    """`auto` takes the grid from some thousand points on; here from the first."""
    monkeypatch.setattr("crfield.nn.dense.operators.SMALL", 0)
    results = both_runs(TERMS, (2, 5, 1, 4, 5), 2, filter="auto")
    assert isinstance(results[1][0]._plain[0], Grid)
    check(results)


@pytest.mark.slow
def test_wrong_factor_is_noticed(monkeypatch):
    whole = _step_kernels.update_back

    def halved(q, total, back, by_factor, terms, quads):
        whole(q, total, back, by_factor, [t._replace(factor=0.9 * t.factor) for t in terms], quads)

    monkeypatch.setattr(_step_kernels, "update_back", halved)
    with pytest.raises(AssertionError):
        check(both_runs(TERMS, (1, 3, 1, 3, 4), 2))


@pytest.mark.parametrize(("shape", "axis"), [((5, 8), 0), ((3, 7, 8), 1), ((2, 1, 4), 1)])
def test_blur_along_an_axis(shape, axis):
    table = torch.randn(shape, dtype=torch.float32, device=DEVICE)
    inner = int(np.prod(shape[axis + 1 :]))
    found = _grid_kernels.blur_along(table, shape[axis], inner)
    wanted = np.apply_along_axis(
        lambda x: np.convolve(x, [1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16])[2:-2], axis,
        table.double().cpu().numpy(),
    )
    np.testing.assert_allclose(found.cpu().numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("lengths", [(7,), (5, 9), (3, 4, 6)])
def test_gradients_of_grids(lengths):
    """The kernel that goes from shares to positions against plain torch, and the whole gradient."""
    rng = np.random.default_rng(len(lengths))
    coordinates = torch.from_numpy(
        np.concatenate([np.arange(n) / 2.3 - 0.4 for n in lengths])
    ).float().to(DEVICE)
    layout = GridLayout(coordinates, lengths)
    grid = Grid(coordinates, layout, 2, torch.float32)
    plain = Grid(coordinates, layout, 2, torch.float64)
    n = 2 * int(np.prod(lengths))
    u, v = (torch.from_numpy(rng.normal(size=(n, 3))).to(DEVICE) for _ in range(2))
    by_weight = torch.from_numpy(rng.normal(size=(n, 2 ** len(lengths)))).to(DEVICE)
    for found, expected in (
        (grid.chain_to_features(by_weight.float()), plain.chain_to_features(by_weight)),
        (grid.feature_gradient(u.float(), v.float()), plain.feature_gradient(u, v)),
    ):
        assert found.dtype == torch.float32
        scale = float(expected.abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6 * scale)
