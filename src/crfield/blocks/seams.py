"""How far a block can differ from the whole image: what was measured, and a bound.

A block's window B leaves out the pixels beyond it. With p the marginals of the block and q those of
the whole image after as many iterations of "concave", d_i = sum_j k_ij over all pixels and
b_i = sum_{j in B} k_ij, the messages at pixel i of B differ by

    sum_{j in B} K_ij (q_j - p_j)  -  sum_{j in B} K_ij (1 - r_i r_j) q_j  +  c_i,

K the block's kernel with symmetric normalization, r_i = sqrt(b_i / d_i) and c_i the sum over the
pixels beyond, of mass C_i. The weight beyond, o_i = d_i - b_i, is at most the tail O_i of the
kernel on positions alone, since colors only lower k_ij; so r_i >= sqrt(b_i / (b_i + O_i)), and
C_i <= O_i / sqrt(b_i low) where low <= d_j for every pixel beyond. Let t_i bound the total
variation between p_i and q_i, and eta the range of a column of mu. Costs differ by at most

    w_i = eta (2 (K t)_i + A_i + C_i),    A_i = (K 1)_i - r_i (K r)_i,

in range over the labels, and a softmax whose costs change by this range moves by at most
phi(min(x, x*)), phi(x) = x / (x + (1 - x) exp(-w)) - x, x = 1 - max_l p_il, x* = 1 / (1 + exp(w/2))
(the most that a set of labels of mass x can gain). From t = 0 this gives the bound iteration by
iteration, exact sums provided. O_i falls with the overlap like the tail of a Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError, as_not_negative
from crfield.blocks.parts import Block
from crfield.dense.filters.base import NativeFilter
from crfield.dense.kernels import Bilateral, Kernel, Spatial
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.dense.observation import Observation, observe
from crfield.dense.problem import build_terms

Vector = NDArray[np.float64]

LEAST_OVERLAP = 8
# Pixels of a face between two blocks that are compared.
_MOST_COMPARED = 4096


@dataclass(frozen=True)
class Seams:
    """How far blocks disagree where they meet, and how far they can be from the whole image.

    Attributes
    ----------
    pixels : pixels beside the faces between blocks that were compared.
    differing : share of them that the two blocks give different labels; None, like the next two,
        if none were compared, for want of an overlap or of a second block.
    mean, largest : of the total variation sum_l |q_l - q'_l| / 2 between their marginals.
    bound_mean, bound_largest : over all pixels, of a bound on the total variation between the
        marginals of their block and those of the whole image after as many iterations; None unless
        it was asked for.
    """

    pixels: int
    differing: float | None
    mean: float | None
    largest: float | None
    bound_mean: float | None = None
    bound_largest: float | None = None


def position_widths(kernel: Kernel, grid_dim: int, spacing: Any) -> Vector:
    """Standard deviations of a kernel along the axes of the grid, in pixels, (d,)."""
    if isinstance(kernel, Spatial):
        widths = kernel.sigma
    elif isinstance(kernel, Bilateral):
        joint = kernel.covariance
        widths = kernel.sigma_xy if joint is None else joint[:grid_dim, :grid_dim]
    else:
        raise InputError(
            f"blocks need kernels that look at positions, got {kernel.describe()}; "
            "use Spatial and Bilateral terms."
        )
    if np.ndim(widths) == 2:
        widths = np.sqrt(np.diag(widths))
    steps = observe((1,) * grid_dim, spacing=spacing).spacing
    widths = np.broadcast_to(widths, grid_dim)
    return np.asarray(widths if steps is None else widths / steps)


def default_overlap(model: DenseCRF, grid_dim: int, spacing: Any = None) -> tuple[int, ...]:
    """Twice the widest positional sigma along each axis in pixels, at least 8, (d,)."""
    widths = [position_widths(term.kernel, grid_dim, spacing) for term in model.terms]
    widest = np.max(widths, axis=0) if widths else np.zeros(grid_dim)
    return tuple(max(LEAST_OVERLAP, math.ceil(2.0 * width)) for width in widest)


def outside_share(
    model: DenseCRF, overlap: float, *, grid_dim: int = 2, spacing: Any = None
) -> float:
    """The largest share of a kernel's weight on positions farther than `overlap` pixels along some
    axis, 1 - prod_a (1 - erfc(overlap / (sigma_a sqrt 2))).

    A pixel that far inside its window loses at most this share of a term's neighbors in one
    iteration, if colors beyond the window are mixed like those within it; `refine_blocks` bounds
    all iterations without that assumption.
    """
    distance = as_not_negative(overlap, "overlap", "pass a distance in pixels")
    shares = [
        1.0 - math.prod(
            1.0 - math.erfc(distance / (width * math.sqrt(2.0)))
            for width in position_widths(term.kernel, grid_dim, spacing)
        )
        for term in model.terms
    ]
    return max(shares, default=0.0)


def tails(
    kernel: Kernel, block: Block, whole: tuple[int, ...], spacing: Any
) -> tuple[Vector, float]:
    """The largest weight O_i that a kernel can give to pixels beyond the window of a block,
    (*window,), and the least that any pixel of the whole grid gets from positions alone.
    """
    beyond, inside, least = np.zeros(()), np.ones(()), 1.0
    widths = _envelope(kernel, len(whole), spacing)
    for part, n, width in zip(block.window, whole, widths, strict=True):
        values = np.exp(-0.5 * (np.arange(n) / width) ** 2)
        # onwards[k] is the weight of all pixels at distance k or more on one side.
        onwards = np.append(np.cumsum(values[::-1])[::-1], 0.0)
        x = np.arange(part.start, part.stop)
        before = onwards[x - part.start + 1] if part.start > 0 else np.zeros(len(x))
        after = onwards[part.stop - x] if part.stop < n else np.zeros(len(x))
        within = 2 * onwards[0] - onwards[x - part.start + 1] - onwards[part.stop - x] - values[0]
        # prod total - prod inside, without the cancellation
        missed = before + after
        beyond = beyond[..., None] * (within + missed) + inside[..., None] * missed
        inside = inside[..., None] * within
        least *= float(onwards[0])
    return beyond, least


class SeamBound:
    """The bound t of the module's head on one block, brought up to date iteration by iteration."""

    def __init__(
        self, model: DenseCRF, observation: Observation, block: Block, dtype: np.dtype[Any],
        inference: Inference,
    ) -> None:
        assert observation.window is not None
        whole = observation.window.whole
        self._seen = observation
        self._terms = []
        self._source = np.zeros(observation.n_variables)
        built = build_terms(model.terms, observation, dtype, inference)
        for pairwise, term in zip(model.terms, built, strict=True):
            operator = term.operator
            assert isinstance(operator, NativeFilter)
            mu = pairwise.compatibility.matrix(model.n_labels)
            eta = abs(pairwise.weight) * float(np.ptp(mu, axis=0).max())
            beyond, least = tails(pairwise.kernel, block, whole, observation.spacing)
            outside = observation.select(beyond.reshape(-1))
            if operator.normalization == "none":
                self._source += eta * outside
            else:
                alone = isinstance(pairwise.kernel, Spatial) and observation.selected is None
                seen = operator.scale * operator.row_sums().astype(np.float64)
                ratio = np.sqrt(seen / (seen + outside))
                lost = _applied(operator, np.ones_like(ratio)) - ratio * _applied(operator, ratio)
                mass = outside / np.sqrt(seen * (least if alone else 1.0))
                self._source += eta * (np.maximum(lost, 0.0) + mass)
            self._terms.append((eta, operator))
        self.values = np.zeros(observation.n_variables)

    def on_grid(self) -> Vector:
        """The bound on the window, 0 for variables outside a mask, (*window,)."""
        whole = np.zeros(math.prod(self._seen.grid))
        whole[slice(None) if self._seen.selected is None else self._seen.selected] = self.values
        return whole.reshape(self._seen.grid)

    def follow(self, iteration: int, marginals: FloatArray, free_energy: float) -> None:
        """The bound after one more iteration, which led to these marginals (N, L)."""
        change = self._source.copy()
        for eta, operator in self._terms:
            change += 2 * eta * np.maximum(_applied(operator, self.values), 0.0)
        rest = 1.0 - marginals.max(1).astype(np.float64)
        rest = np.maximum(rest, np.finfo(marginals.dtype).eps)
        shrunk = np.exp(-change)
        gain = rest / (rest + (1.0 - rest) * shrunk) - rest
        most = 1.0 / (1.0 + np.exp(np.minimum(0.5 * change, 700.0)))
        self.values = np.where(rest <= most, gain, np.tanh(0.25 * change))


class SeamMeter:
    """Compares what neighboring blocks say of the first pixels beyond the face between them.

    count : pixels compared; at most 4096 of a face, evenly spread.
    differing : how many of them got different labels.
    total, largest : sum and maximum of the total variation sum_l |q_l - q'_l| / 2.
    """

    def __init__(self) -> None:
        self.count = self.differing = 0
        self.total = self.largest = 0.0
        self._waiting: dict[tuple[tuple[int, ...], int], FloatArray] = {}

    def add(self, block: Block, whole: tuple[int, ...], marginals: FloatArray) -> None:
        """Take in the marginals (*window, L) of one block; its neighbors before it came first."""
        for axis, n in enumerate(whole):
            core, window = block.core[axis], block.window[axis]
            if core.start > 0:
                other = self._waiting.pop((_before(block, axis), axis), None)
                if other is not None:
                    self._compare(other, self._layer(block, axis, core.start, marginals))
            if core.stop < min(n, window.stop):
                layer = self._layer(block, axis, core.stop, marginals)
                self._waiting[block.index, axis] = layer.copy()

    @property
    def sums(self) -> tuple[int, int, float, float]:
        """`count`, `differing`, `total` and `largest`, from which `restore` goes on."""
        return self.count, self.differing, self.total, self.largest

    def layers(self, block: Block) -> dict[int, FloatArray]:
        """What waits for the neighbors after a block, (n, L) by axis."""
        axes = range(len(block.index))
        return {
            axis: self._waiting[block.index, axis]
            for axis in axes if (block.index, axis) in self._waiting
        }

    def restore(
        self, block: Block, sums: tuple[int, int, float, float], layers: dict[int, FloatArray]
    ) -> None:
        """Be as after the block that led to these sums and left these layers."""
        self.count, self.differing, self.total, self.largest = sums
        for axis in range(len(block.index)):
            self._waiting.pop((_before(block, axis), axis), None)
        self._waiting.update({(block.index, axis): each for axis, each in layers.items()})

    def seams(self) -> Seams:
        """What was found so far."""
        if self.count == 0:
            return Seams(0, None, None, None)
        return Seams(
            self.count, self.differing / self.count, self.total / self.count, self.largest
        )

    def _layer(self, block: Block, axis: int, place: int, marginals: FloatArray) -> FloatArray:
        """Marginals of the pixels of a core at one place along an axis, thinned out, (n, L)."""
        others = [part for a, part in enumerate(block.inner) if a != axis]
        count = math.prod(part.stop - part.start for part in others)
        step = math.ceil((count / _MOST_COMPARED) ** (1.0 / max(1, len(others))))
        chosen: list[Any] = [slice(part.start, part.stop, step) for part in others]
        chosen.insert(axis, place - block.window[axis].start)
        return np.reshape(marginals[tuple(chosen)], (-1, marginals.shape[-1]))

    def _compare(self, one: FloatArray, other: FloatArray) -> None:
        distance = 0.5 * np.abs(one - other).sum(-1, dtype=np.float64)
        self.count += len(distance)
        self.differing += int((one.argmax(-1) != other.argmax(-1)).sum())
        self.total += float(distance.sum())
        self.largest = max(self.largest, float(distance.max()))


def _before(block: Block, axis: int) -> tuple[int, ...]:
    """The index of the neighbor before a block along an axis."""
    return tuple(k - (a == axis) for a, k in enumerate(block.index))


def check_bound(model: DenseCRF, algorithm: str) -> None:
    """Refuse models and algorithms that the bound does not cover."""
    if algorithm != "concave":
        raise InputError(
            f'bound=True is for algorithm "concave", got {algorithm!r}; use that, or bound=False.'
        )
    for term in model.terms:
        if term.kernel.shape != "gaussian" or not term.kernel.is_symmetric:
            raise InputError(
                "bound=True is for Gaussian kernels with symmetric normalization or none, got "
                f"{term.kernel.shape} and {term.kernel.normalization!r}; use bound=False."
            )


def _envelope(kernel: Kernel, grid_dim: int, spacing: Any) -> Vector:
    """Widths of a product over the axes that is nowhere below the kernel, (d,).

    With a covariance S, k <= exp(-x_a^2 / (2 S_aa)) for each axis, so k is at most the geometric
    mean of these.
    """
    widths = position_widths(kernel, grid_dim, spacing)
    given = [getattr(kernel, name, None) for name in ("sigma", "sigma_xy", "covariance")]
    mixed = any(getattr(value, "ndim", 0) == 2 for value in given)
    return widths * math.sqrt(grid_dim) if mixed else widths


def _applied(operator: NativeFilter, x: Vector) -> Vector:
    applied: FloatArray = operator.apply(x[:, None].astype(operator.dtype))[:, 0]
    return applied.astype(np.float64)
