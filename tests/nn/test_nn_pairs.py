"""The kernel sum over all pairs on tensors: plain torch in float64, Triton in float32.

Without a GPU the Triton kernels run in Triton's interpreter: slowly, so that shapes are small.
"""

import numpy as np
import pytest

from torch_device import DEVICE, needs_triton, torch

# isort: split
from crfield.nn.ops.backend import has_triton
from crfield.nn.ops.pairs import reference as _pairs
from crfield.nn.ops.pairs.reference import PairSum
from refusal import refusal

if has_triton():
    from crfield.nn.ops.pairs import triton as _pair_kernels

SUM_ERROR = 5e-4  # of float16 factors
GRADIENT_ERROR = 1e-5  # of split factors; one float16 each would bring 2e-4


def draw(n_points, n_columns, dim, n_images, *, spread=1.5):
    """float64 features, u and v that float32 holds exactly."""
    generator = torch.Generator().manual_seed(n_points + 1000 * n_columns)
    shapes = [(n_images, n_points, dim)] + 2 * [(n_images * n_points, n_columns)]
    f, u, v = (torch.randn(s, generator=generator).double().to(DEVICE) for s in shapes)
    return (f * spread).float().double(), u, v


def dense(features):
    """K of each image (B, N, N)."""
    difference = features[:, :, None] - features[:, None]
    return torch.exp(-0.5 * difference.square().sum(-1))


def expected_sum(features, x):
    b, n, _ = features.shape
    return (dense(features) @ x.reshape(b, n, -1)).reshape(x.shape)


def expected_gradient(features, u, v):
    """Automatic differentiation of sum(u * K v)."""
    f = features.clone().requires_grad_()
    (u * expected_sum(f, v)).sum().backward()
    return f.grad.reshape(len(u), -1)


def error(result, expected):
    scale = expected.norm().item()
    return (result.double() - expected).norm().item() / (scale if scale > 0 else 1.0)


def check_in_float32(features, v, u=None):
    """The operator, whose sums, and derivatives where u is given, are those in float64."""
    operator = PairSum(features.float())
    assert error(operator.apply(v.float()), expected_sum(features, v)) < SUM_ERROR
    if u is not None:
        gradient = operator.feature_gradient(u.float(), v.float())
        assert error(gradient, expected_gradient(features, u, v)) < GRADIENT_ERROR
    return operator


def test_reference_in_small_blocks(monkeypatch):
    """Neither the list of pairs nor the sums depend on how much is held at a time."""
    features, u, v = draw(300, 3, 2, 2, spread=4.0)
    whole = PairSum(features, filter_tol=1e-3)
    monkeypatch.setattr(_pairs, "_LARGEST_BLOCK", 3 * _pairs.TILE**2)
    parts = PairSum(features, filter_tol=1e-3)
    assert torch.equal(whole._tiles.near, parts._tiles.near)
    assert torch.equal(whole._tiles.first, parts._tiles.first)
    assert error(parts.apply(v), whole.apply(v)) < 1e-14
    assert error(parts.feature_gradient(u, v), whole.feature_gradient(u, v)) < 1e-13


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 16 points, which skip much already at small sizes."""
    monkeypatch.setattr(_pairs, "TILE", 16)
    if has_triton():
        for name in ("SUM_OPTIONS", "GRADIENT_OPTIONS"):
            options = getattr(_pair_kernels, name) | {"ROWS": 16, "COLUMNS": 16}
            monkeypatch.setattr(_pair_kernels, name, options)


@pytest.mark.parametrize("tol", [1e-6, 1e-3, 0.1, 0.5])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_skipping_keeps_its_bound(small_tiles, dim, tol):
    """Worst cases are all ones, whose errors add up, and the unit vectors, which show K itself."""
    generator = torch.Generator().manual_seed(dim)
    features = 12 * torch.rand(1, 400, dim, generator=generator, dtype=torch.float64).to(DEVICE)
    k = dense(features)[0]
    operator = PairSum(features, filter_tol=tol)
    left_out = k - operator.apply(torch.eye(400, dtype=torch.float64, device=DEVICE))
    assert left_out.abs().max() <= tol
    assert torch.equal(left_out != 0, (left_out != 0).T)
    if dim < 5:
        assert operator.active_fraction < 0.95
        assert left_out.abs().max() > 0.01 * tol  # the bound is not one of rounding
    ones = k.new_ones(400, 1)
    assert (operator.apply(ones) - k @ ones).abs().max() <= 400 * tol
    if tol < np.exp(-0.5):
        u, v = (torch.randn(400, 3, generator=generator).double().to(DEVICE) for _ in range(2))
        wrong = operator.feature_gradient(u, v) - expected_gradient(features, u, v)
        c = (u @ v.T + v @ u.T).abs().sum(1)
        assert (wrong.norm(dim=1) <= np.sqrt(-2 * np.log(tol)) * tol * c).all()


def test_zero_tolerance_skips_underflow_only(small_tiles):
    features = torch.linspace(0, 100, 400, dtype=torch.float64, device=DEVICE)[None, :, None]
    k = dense(features)[0]
    for dtype in (torch.float32, torch.float64):
        operator = PairSum(features.to(dtype))
        assert operator.active_fraction < 1
        tiles = operator._tiles
        found = torch.zeros_like(k, dtype=torch.bool)
        for rows, columns in tiles.near_blocks():
            found[rows, columns] = True
        lost = k[~found[tiles.slot][:, tiles.slot]]
        assert len(lost) > 0
        assert lost.max() < torch.finfo(dtype).tiny


@pytest.mark.parametrize("tol", [-0.1, 1.0, float("nan")])
def test_tolerance_out_of_range(tol):
    assert "tol must be in" in refusal(PairSum, torch.zeros(1, 2, 1), filter_tol=tol)


@pytest.mark.slow
@needs_triton
def test_kernels_in_parts_of_a_tile(monkeypatch):
    features, u, v = draw(100, 21, 2, 1)
    for name in ("SUM_OPTIONS", "GRADIENT_OPTIONS"):
        options = getattr(_pair_kernels, name) | {"ROWS": 32, "COLUMNS": 16}
        monkeypatch.setattr(_pair_kernels, name, options)
    monkeypatch.setattr(_pair_kernels, "WIDEST", 16)
    monkeypatch.setattr(_pair_kernels, "WIDEST_PRODUCT", 32)
    check_in_float32(features, v, u)


@needs_triton
def test_kernels_take_any_strides():
    features, u, v = draw(20, 3, 2, 1)
    turned = [x.T.contiguous().T for x in (v, u)]
    assert not any(x.float().is_contiguous() for x in turned)
    check_in_float32(features, *turned)


@pytest.fixture(params=["products", "differences"])
def exponents(request, monkeypatch):
    """How the kernels come to the exponents of k."""
    if request.param == "differences":
        monkeypatch.setattr(_pair_kernels, "FARTHEST", -1.0)
    return request.param


@needs_triton
def test_row_sums_and_symmetry(exponents):
    """Row sums meet the same rounded k as everything else; k_ij = k_ji to one rounding at most."""
    features, _, _ = draw(70, 1, 5, 1)
    operator = PairSum(features.float())
    assert error(operator.row_sums(), dense(features).sum(2).reshape(-1)) < 2e-4
    k = operator.apply(torch.eye(70, device=DEVICE))
    if exponents == "differences":
        assert torch.equal(k, k.T)
    else:
        assert ((k - k.T).abs() <= 2.0**-10 * k + 2.0**-39).all()
    assert torch.equal(k.diagonal(), operator.diagonal())


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("shape", [(65, 21, 1, 1), (130, 21, 5, 2)])
def test_exponents_either_way(shape, exponents):
    features, _, v = draw(*shape)
    operator = check_in_float32(features, v)
    assert (operator._products is None) == (exponents == "differences")


@needs_triton
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_products_of_the_farthest_features(dim):
    """Two clouds at the ends of what is taken as products; a little farther it is differences."""
    cloud = draw(80, 4, dim, 1)[0] * 0.3
    v = draw(80, 4, dim, 1)[2]
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64, device=DEVICE).repeat(40)[None, :, None]
    for distance, is_product in ((0.9, True), (1.1, False)):
        middle = distance * _pair_kernels.FARTHEST / np.sqrt(dim)
        features = (cloud + ends * middle + 100.0).float().double()
        assert (check_in_float32(features, v)._products is not None) == is_product


@needs_triton
@pytest.mark.parametrize(("dim", "is_product"), [(40, True), (41, False)])
def test_many_features(dim, is_product):
    features, _, v = draw(70, 2, dim, 1, spread=0.2)
    assert (check_in_float32(features, v)._products is not None) == is_product


@needs_triton
def test_runs_of_tiles(monkeypatch):
    """The last run of a tile's sum may be shorter."""
    options = _pair_kernels.NARROW_PRODUCT_OPTIONS | {"RUN": 2}
    monkeypatch.setattr(_pair_kernels, "NARROW_PRODUCT_OPTIONS", options)
    for n_points in (250, 310):
        features, _, v = draw(n_points, 3, 2, 1)
        check_in_float32(features, v)


@needs_triton
@pytest.mark.parametrize("magnitude", [1e-30, 1e-8, 1e8, 1e30])
def test_magnitudes(magnitude):
    """Columns and images of very different sizes, each as precise as on its own."""
    features, u, v = draw(40, 3, 2, 2)
    sizes = torch.tensor([1.0, magnitude, 0.0], dtype=torch.float64, device=DEVICE)
    v = (v * sizes).float()
    operator = PairSum(features.float())
    result = operator.apply(v)
    expected = expected_sum(features, v.double())
    for column in range(3):
        assert error(result[:, column], expected[:, column]) < SUM_ERROR
    u = u * torch.tensor([1.0, magnitude], device=DEVICE).repeat_interleave(40)[:, None].double()
    v = v[:, :1].expand(-1, 3).contiguous()
    result = operator.feature_gradient(u.float(), v)
    expected = expected_gradient(features, u.float().double(), v.double())
    for image in (slice(0, 40), slice(40, 80)):
        assert error(result[image], expected[image]) < GRADIENT_ERROR


@needs_triton
def test_small_entries_beside_large_ones():
    """Entries of one column over eight orders of magnitude reach their own neighbors intact."""
    n = 30
    features = 40.0 * torch.arange(n, dtype=torch.float64, device=DEVICE)[None, :, None]
    x = torch.logspace(0, -8, n, dtype=torch.float64, device=DEVICE)[:, None]
    result = PairSum(features.float()).apply(x.float())
    assert ((result.double() - x) / x).abs().max() < 6e-4


@needs_triton
def test_many_small_weights_add_up():
    """k = 1e-8 is below float16's numbers, but a sum of many is not nothing."""
    distance = np.sqrt(-2 * np.log(1e-8))
    features = torch.zeros(1, 129, 1, dtype=torch.float64, device=DEVICE)
    features[0, 1:] = distance
    features = features.float().double()
    x = torch.ones(129, 1, dtype=torch.float64, device=DEVICE)
    x[0] = 0
    result = PairSum(features.float()).apply(x.float())
    assert error(result[:1], expected_sum(features, x)[:1]) < SUM_ERROR


@pytest.mark.slow
@needs_triton
def test_what_float16_cannot_hold_can_be_skipped(small_tiles):
    """Below 2^-40 the kernels round k to nothing: that tolerance changes no sum."""
    generator = torch.Generator().manual_seed(4)
    features = (20 * torch.rand(1, 120, 1, generator=generator)).to(DEVICE)
    x = torch.rand(120, 2, generator=generator).to(DEVICE)
    all_pairs, near_pairs = PairSum(features), PairSum(features, filter_tol=2.0**-40)
    assert near_pairs.active_fraction < all_pairs.active_fraction
    assert torch.equal(all_pairs.apply(x), near_pairs.apply(x))


@needs_triton
def test_features_far_from_the_origin():
    features, u, v = draw(90, 5, 3, 1)
    features = (features + 1e4).float().double()
    check_in_float32(features, v, u)


@pytest.mark.slow
@needs_triton
def test_kernels_skip_what_the_reference_skips(small_tiles):
    generator = torch.Generator().manual_seed(3)
    features = (12 * torch.rand(2, 100, 2, generator=generator)).to(DEVICE)
    u, v = (torch.randn(200, 3, generator=generator).to(DEVICE) for _ in range(2))
    operator = PairSum(features, filter_tol=0.1)
    reference = PairSum(features.double(), filter_tol=0.1)
    assert operator.active_fraction < 0.9
    assert torch.equal(operator._tiles.near, reference._tiles.near)
    skipped = expected_sum(features.double(), v.double()) - reference.apply(v.double())
    assert skipped.norm() > 1e-3 * v.norm()
    assert error(operator.apply(v), reference.apply(v.double())) < SUM_ERROR
    expected = reference.feature_gradient(u.double(), v.double())
    assert error(operator.feature_gradient(u, v), expected) < GRADIENT_ERROR
