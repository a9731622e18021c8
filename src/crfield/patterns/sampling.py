"""Label maps drawn from a pattern model by block Gibbs sampling (CHOPP sections 4.3 and 5).

One pass draws all hidden units given the labels (eq. 7), then the pixels of one color of the
checkerboard given the hidden units and the other color, then those of the other color (eq. 8).
At T = 1 that leaves p(y, h | x) unchanged, so that the labels come from p(y | x); at any other
temperature it is the alternating sampler of section 4.3, without that guarantee.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.resources import thread_count
from crfield._core.validate import InputError, as_array, as_count, check_memory, shown
from crfield.patterns._checks import check_binary
from crfield.patterns.inference import infer
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.model import PatternCRF

Rows = NDArray[np.intp]

# NumPy pads seeds with zeros, so that [s, 1] and [s, 1, 0] are one; ours start with what is drawn.
HIDDEN_UNITS, ORDER_OF_IMAGES = 1, 2


class Chains:
    """Markov chains that go on from where they are, some for each image of a batch.

    What they draw depends on the seed, the number of passes so far and the place of an image in the
    batch, with patterns also on which images move together and in which order; not on the number of
    threads.

    labels : (B, n_chains, H, W) uint8, where they are.
    seed : of all draws.
    n_passes : how many passes there have been.
    """

    def __init__(self, labels: Any, *, seed: int = 0, n_passes: int = 0) -> None:
        array = as_array(labels, "labels")
        if array.ndim != 4 or array.size == 0:
            raise InputError(
                f"labels must have shape (B, n_chains, height, width), got {array.shape}; "
                "give every image at least one chain."
            )
        check_binary(array, "labels")
        self.labels: NDArray[np.uint8] = array.astype(np.uint8, order="C")
        self.seed = as_count(seed, "seed", 0, 2**63 - 1)
        self.n_passes = as_count(n_passes, "n_passes", 0, 2**63 - 1)

    @classmethod
    def start(
        cls, model: PatternCRF, inputs: PatternInputs, n_chains: int, *, seed: int = 0,
        threads: int | None = None,
    ) -> Chains:
        """Chains at the labels that inference starts from, the MAP without patterns.

        model, inputs : whose labels are sampled, `n_chains` for each image, from `seed`.
        """
        check_samplable(model, inputs)
        count = as_count(n_chains, "n_chains")
        check_memory(
            2.0 * len(inputs) * count * inputs.grid[0] * inputs.grid[1],
            f"Sampling with {count} chains for each of {len(inputs)} images", "use fewer chains",
        )
        first = infer(model.pairwise_only(), inputs, threads=threads).labels
        copies = np.repeat(first[:, None], count, 1)
        return cls(copies, seed=seed)

    def advance(
        self, model: PatternCRF, inputs: PatternInputs, *, rows: Any = None,
        n_passes: int = 1, threads: int | None = None,
    ) -> NDArray[np.uint8]:
        """Some full passes, and the labels (b, n_chains, H, W) that they lead to.

        model : the one that the chains were started with, or with other parameters.
        inputs : of all images, or of those numbered `rows`.
        rows : (b,) numbers of the images whose chains to move, each once, or a mask of all images;
            all by default.
        """
        check_samplable(model, inputs)
        moved = _as_image_numbers(rows, len(self.labels))
        if len(inputs) != len(moved) or inputs.grid != self.labels.shape[2:]:
            raise InputError(
                f"inputs must be {len(moved)} images of size {self.labels.shape[2:]}, got "
                f"{len(inputs)} of size {inputs.grid}; pass those whose chains are to move."
            )
        _check_room(model, len(moved) * self.labels.shape[1])
        chosen = self.labels[moved]
        shape = chosen.shape
        flat = chosen.reshape(-1, *shape[2:])
        n_chains = shape[1]
        image = np.repeat(np.arange(len(moved), dtype=np.int32), n_chains)
        stream = (moved[:, None] * n_chains + np.arange(n_chains)).ravel().astype(np.uint64)
        log_odds = -model.label_costs(inputs)[image]
        weights = np.ascontiguousarray(model.edge_weights(inputs), log_odds.dtype)
        of_weights = image if len(weights) > 1 else np.zeros_like(image)
        features = None if inputs.features is None else inputs.features[image]
        for _ in range(as_count(n_passes, "n_passes", 0)):
            given = log_odds
            if model.patterns is not None:
                rng = np.random.default_rng([HIDDEN_UNITS, self.seed, self.n_passes])
                h = model.patterns.sample_hidden(flat.reshape(len(flat), -1), rng, features)
                given = log_odds + model.patterns.to_visible(h).reshape(flat.shape)
            _native.sweep_grids(
                flat, np.ascontiguousarray(given, log_odds.dtype), weights, of_weights, stream,
                self.seed, self.n_passes, thread_count(threads),
            )
            self.n_passes += 1
        self.labels[moved] = chosen
        return chosen


def sample(
    model: PatternCRF, inputs: PatternInputs, *, n_chains: int = 1, n_passes: int = 100,
    seed: int = 0, threads: int | None = None,
) -> NDArray[np.uint8]:
    """Label maps (B, n_chains, H, W) after `n_passes` passes of block Gibbs sampling.

    model, inputs : as for `infer`; the same seed gives the same maps, whatever `threads`.
    """
    chains = Chains.start(model, inputs, n_chains, seed=seed, threads=threads)
    return chains.advance(model, inputs, n_passes=n_passes, threads=threads)


def _as_image_numbers(rows: Any, n: int) -> Rows:
    if rows is None:
        return np.arange(n)
    given = as_array(rows, "rows")
    if given.dtype.kind == "b" and given.shape == (n,):
        return np.flatnonzero(given)
    if (
        given.dtype.kind not in "iu" or given.ndim != 1 or given.size == 0
        or given.min() < 0 or given.max() >= n or len(np.unique(given)) < len(given)
    ):
        raise InputError(
            f"rows must be different whole numbers from 0 to {n - 1}, or a mask of {n} images, got "
            f"{shown(rows)}; name each image whose chains are to move once."
        )
    return given.astype(np.intp)


def _check_room(model: PatternCRF, n_chains: int) -> None:
    """Refuse a pass that memory has no room for: log-odds thrice, and what h is drawn from."""
    n_hidden = 0 if model.patterns is None else model.patterns.n_hidden
    check_memory(
        float(n_chains) * (25 * model.visible_bias.size + 33 * n_hidden),
        f"A pass of {n_chains} chains", "use fewer chains, or fewer images at a time",
    )


def check_samplable(model: PatternCRF, inputs: PatternInputs) -> None:
    """Refuse what the two colors of a checkerboard do not separate."""
    if not isinstance(model, PatternCRF):
        raise InputError(
            f"model must be a PatternCRF, got {type(model).__name__}; "
            "sampling is for binary labels."
        )
    model.check_inputs(inputs)
    if inputs.pairwise is not None and inputs.pairwise.shape[2] != 2:
        raise InputError(
            "pairwise must join 4 neighbors for sampling, got 8; leave the diagonal edges out."
        )
