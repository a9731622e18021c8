"""The lattice on tensors: against the compiled one, and its kernels against plain torch.

Without a GPU the kernels run in Triton's interpreter, at tiny shapes.
"""

import subprocess
import sys

import numpy as np
import pytest

from torch_device import DEVICE, needs_triton, torch

# isort: split
from crfield.dense.filters import LatticeFilter
from crfield.nn.ops import backend as _backend
from crfield.nn.ops.lattice import build as _lattice_build
from crfield.nn.ops.lattice.reference import Lattice
from crfield.nn.ops.tables import reference as _tables
from operator_contract import derivative, poisoned
from refusal import refusal

if _backend.has_triton():
    from crfield.nn.ops.lattice import build_triton as _lattice_build_kernels
    from crfield.nn.ops.tables import triton as _table_kernels


def make_features(n_images, n_points, dim, dtype=torch.float32, spread=0.6, seed=0):
    rng = np.random.default_rng([seed, n_images, n_points, dim])
    features = rng.normal(size=(n_images, n_points, dim)) * spread
    return torch.tensor(features, dtype=dtype, device=DEVICE)


def make_rows(n_rows, n_columns, dtype=torch.float32, seed=1):
    rng = np.random.default_rng([seed, n_rows, n_columns])
    return torch.tensor(rng.normal(size=(n_rows, n_columns)), dtype=dtype, device=DEVICE)


def assert_close(found, expected, tolerance):
    found, expected = (np.asarray(torch.as_tensor(a).cpu()) for a in (found, expected))
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max(initial=0) <= tolerance * np.abs(expected).max(initial=0)


def check_against_compiled(features, tolerance):
    """Every method against one LatticeFilter per image."""
    n_images, n_points, _ = features.shape
    u, v = (make_rows(n_images * n_points, 3, features.dtype, seed) for seed in (1, 2))
    s = u[:, 0].contiguous()
    lattice = Lattice(features)
    found = (
        lattice.apply(v), lattice.row_sums(), lattice.diagonal(), lattice.feature_gradient(u, v),
        lattice.diagonal_gradient(s),
    )
    expected, n_vertices = [], 0
    images = [np.split(x.cpu().numpy(), n_images) for x in (features.flatten(0, 1), u, v, s)]
    for f_i, u_i, v_i, s_i in zip(*images, strict=True):
        compiled = LatticeFilter(f_i, normalization="none", threads=1)
        n_vertices += compiled.n_vertices
        expected.append((
            compiled.apply(v_i), compiled.apply(np.ones_like(v_i))[:, 0], compiled.diagonal(),
            derivative(compiled, [(u_i, v_i)]), derivative(compiled, (), s_i),
        ))
    assert lattice.n_vertices == n_vertices
    for value, parts in zip(found, zip(*expected, strict=True), strict=True):
        assert value.dtype == features.dtype
        assert_close(value, np.concatenate(parts), tolerance)


def test_equal_points_and_points_on_the_borders_of_simplices():
    features = make_features(1, 30, 3, torch.float64)
    features[:, 10:20] = features[:, :10]
    features[:, 20:] = 0
    check_against_compiled(features, 1e-12)


def test_no_points():
    lattice = Lattice(torch.zeros(2, 0, 3))
    assert lattice.n_vertices == 0
    assert lattice.apply(torch.zeros(0, 4)).shape == (0, 4)
    assert lattice.diagonal().shape == (0,)


def test_keys_of_several_words():
    """Coordinates too far apart for 63 bits: exact all the same."""
    features = make_features(2, 12, 6, torch.float64)
    features[:, ::2] += 1e7
    assert _lattice_build.KeyLayout.of(features.reshape(-1, 6), 2).n_words > 1
    check_against_compiled(features, 1e-8)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("dim", [2, 8])
def test_float32_points_far_away_are_embedded_in_double(dim):
    features = make_features(1, 9, dim)
    features[:, ::2] += 3000.0
    layout = _lattice_build.KeyLayout.of(features.reshape(-1, dim), 1)
    assert layout.work_dtype(torch.float32) == torch.float64
    check_against_compiled(features, 1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e20])
def test_features_out_of_range_are_refused(bad):
    features = make_features(1, 5, 2)
    features[0, 3, 1] = bad
    assert "finite" in refusal(Lattice, features)


@pytest.mark.parametrize("dim", [0, 17])
def test_dimensions_out_of_range_are_refused(dim):
    assert "1 to 16" in refusal(Lattice, torch.zeros(1, 3, dim))


def test_scales_of_points():
    """diag(post) K diag(pre), in float64 on plain torch."""
    lattice = Lattice(make_features(2, 7, 3, torch.float64))
    x = make_rows(14, 4, torch.float64)
    pre, post = make_rows(14, 2, torch.float64).T
    expected = post[:, None] * lattice.apply(pre[:, None] * x)
    assert_close(lattice.apply_scaled(x, pre, post), expected, 1e-13)


@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_sorted_entries_cover_every_entry_once(chunk):
    rng = np.random.default_rng(0)
    vertex = np.minimum(rng.geometric(0.2, size=(50, 3)), 9)  # rows of very different lengths
    entries = _tables.sort_entries(torch.tensor(vertex, dtype=torch.int32), 11, chunk)
    begin, end = entries.begin.tolist(), entries.end.tolist()
    assert sorted(entries.entry.tolist()) == list(range(150))
    for row in range(11):
        owned = []
        for number in range(entries.first_chunk[row], entries.first_chunk[row + 1]):
            assert 0 < end[number] - begin[number] <= chunk
            owned += entries.entry[begin[number] : end[number]].tolist()
        assert owned == np.flatnonzero(vertex == row).tolist()
    assert begin[entries.first_chunk[11] :] == end[entries.first_chunk[11] :]


@pytest.mark.slow
@pytest.mark.parametrize("found", [
    "Lattice(torch.rand(1, 5, 2)).apply(torch.ones(5, 1)).shape == (5, 1)",
    "PairSum(torch.zeros(1, 3, 2)).row_sums().tolist() == [3.0, 3.0, 3.0]",
])
def test_works_without_triton(found):
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from crfield.nn.ops.lattice.reference import Lattice\n"
        "from crfield.nn.ops.pairs.reference import PairSum\n"
        f"assert {found}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.fixture
def in_plain_torch(monkeypatch):
    """Calls a function with the kernels switched off."""

    def call(function, *arguments):
        with monkeypatch.context() as patched:
            patched.setattr(_backend, "runs_kernels", lambda x: False)
            return function(*arguments)

    return call


def assert_same_structure(found, expected):
    """The same lattice up to the numbering of its vertices."""
    assert found.n_rows == expected.n_rows
    assert torch.equal(found.rank, expected.rank)
    assert_close(found.weight, expected.weight, 1e-5)
    renamed = torch.zeros(found.n_rows, dtype=torch.int32, device=DEVICE)
    renamed[found.vertex.reshape(-1)] = expected.vertex.reshape(-1)
    assert torch.equal(renamed[found.vertex], expected.vertex)
    assert torch.equal(renamed.sort().values.long().cpu(), torch.arange(found.n_rows))
    neighbors = torch.empty_like(found.neighbors)
    neighbors[:, renamed] = renamed[found.neighbors]
    assert torch.equal(neighbors, expected.neighbors)


SHAPES = [  # dimensions, images, points of each, columns
    (1, 1, 1, 1), (1, 3, 47, 5), (1, 1, 17, 150), (2, 1, 2, 2), (2, 3, 2, 33), (3, 1, 5, 21),
    (3, 3, 2, 1), (5, 1, 2, 21), (5, 3, 1, 2), (5, 1, 3, 33), (6, 1, 2, 5),
]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@poisoned()
def test_kernels_are_the_plain_torch_form(shape, deterministic, in_plain_torch):
    dim, n_images, n_points, n_columns = shape
    features = make_features(n_images, n_points, dim)
    x = make_rows(n_images * n_points, n_columns)
    scale = make_rows(n_images * n_points, 1, seed=3)[:, 0]
    plain = in_plain_torch(Lattice, features)
    lattice = Lattice(features, deterministic=deterministic)
    assert_same_structure(lattice, plain)

    for name in ("vertex", "weight", "neighbors"):
        setattr(lattice, name, getattr(plain, name))
    table = in_plain_torch(plain.splat, x)
    assert_close(lattice.splat(x), table, 1e-5)
    assert_close(lattice.splat(x, scale), in_plain_torch(plain.splat, x, scale), 1e-5)
    assert not lattice.splat(x)[0].any()
    blurred = in_plain_torch(plain.blur, table)
    assert_close(lattice.blur(table), blurred, 1e-6)
    assert not lattice.blur(table)[0].any()
    assert_close(lattice.slice(table), in_plain_torch(plain.slice, table), 1e-6)
    sliced = in_plain_torch(plain.slice, table, scale, 0.3)
    assert_close(lattice.slice(table, scale, 0.3), sliced, 1e-6)
    assert_close(lattice.apply(x), in_plain_torch(plain.apply, x), 1e-5)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("columns", [slice(1, None), slice(4, None), slice(0, 3)])
@pytest.mark.parametrize("width", [7, 8])
def test_kernels_read_tables_of_any_stride(width, columns, in_plain_torch):
    lattice = Lattice(make_features(1, 6, 2))
    table = make_rows(lattice.n_rows, width)
    table[0] = 0
    part = table[:, columns]
    for method in (lattice.blur, lattice.slice):
        assert_close(method(part), in_plain_torch(method, part), 1e-6)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("deterministic", [False, True])
def test_hash_table_grows(deterministic, monkeypatch, in_plain_torch):
    monkeypatch.setattr(_lattice_build_kernels, "START_SLOTS_PER_POINT", 0.0)
    monkeypatch.setattr(_lattice_build_kernels, "START_SLOTS", 1)
    full = torch.full
    capacities = []

    def counting_full(size, *arguments, **options):
        capacities.append(size[0] - 2)
        return full(size, *arguments, **options)

    monkeypatch.setattr(torch, "full", counting_full)
    features = make_features(1, 12, 2, spread=2.0)
    lattice = Lattice(features, deterministic=deterministic)
    assert capacities == [1, 8, 64]
    assert lattice.n_vertices > 8
    monkeypatch.undo()
    assert_same_structure(lattice, in_plain_torch(Lattice, features))


@pytest.mark.slow
@needs_triton
def test_layouts_of_earlier_points_serve_where_they_fit(monkeypatch, in_plain_torch):
    monkeypatch.setattr(_lattice_build_kernels, "_roomy", {})
    made = []
    of = _lattice_build.KeyLayout.of.__func__

    def counting(cls, features, n_images):
        made.append(len(features))
        return of(cls, features, n_images)

    monkeypatch.setattr(_lattice_build.KeyLayout, "of", classmethod(counting))
    near = make_features(1, 12, 3, spread=2.0)
    sets = [near, 0.8 * near, near + 30.0, near + 30.0, near, -40.0 * near]
    new_layout = [True, False, True, False, True, True]
    for features, is_new in zip(sets, new_layout, strict=True):
        made.clear()
        lattice = Lattice(features)
        assert bool(made) == is_new
        assert_same_structure(lattice, in_plain_torch(Lattice, features))
    assert "finite" in refusal(Lattice, torch.full_like(near, float("nan")))
    made.clear()
    Lattice(near, deterministic=True)
    assert made, "the same bits need the same layout"


@needs_triton
def test_hash_table_may_be_full(monkeypatch, in_plain_torch):
    """Looking for a vertex that is not there ends without an empty slot, too."""
    monkeypatch.setattr(_lattice_build_kernels, "START_SLOTS_PER_POINT", 0.0)
    monkeypatch.setattr(_lattice_build_kernels, "START_SLOTS", 2)
    features = make_features(1, 3, 1, spread=1e-3)
    lattice = Lattice(features)
    assert lattice.n_vertices == 2
    assert_same_structure(lattice, in_plain_torch(Lattice, features))


@pytest.mark.slow
@needs_triton
def test_deterministic_results_are_the_same_bits(in_plain_torch):
    """One vertex owns many chunks of entries, others few."""
    n_points = 2 * _tables.CHUNK + 50
    features = make_features(1, n_points, 1, spread=3.0)
    features[:, 20:] *= 0.01
    x = make_rows(n_points, 3)
    first, second = (Lattice(features, deterministic=True) for _ in range(2))
    assert len(first._sort_entries().begin) > first.n_rows
    assert torch.equal(first.vertex, second.vertex)
    assert torch.equal(first.neighbors, second.neighbors)
    assert torch.equal(first.vertex, in_plain_torch(Lattice, features).vertex)
    result = first.apply(x)
    for lattice in (first, second):
        assert torch.equal(lattice.apply(x), result)
    assert_close(Lattice(features).apply(x), result, 1e-5)


@needs_triton
def test_torch_setting_asks_for_fixed_order(monkeypatch):
    lattice = Lattice(make_features(1, 5, 1))
    used = []
    splat_sorted = _table_kernels.splat_sorted
    monkeypatch.setattr(
        _table_kernels, "splat_sorted", lambda *a: used.append(True) or splat_sorted(*a)
    )
    x = make_rows(5, 2)
    lattice.splat(x)
    assert not used
    torch.use_deterministic_algorithms(True)
    try:
        lattice.splat(x)
        Lattice(make_features(1, 5, 1))
    finally:
        torch.use_deterministic_algorithms(False)
    assert used
