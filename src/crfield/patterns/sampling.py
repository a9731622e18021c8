"""Label maps drawn from a pattern model by block Gibbs sampling (CHOPP sections 4.3 and 5).

One pass draws all hidden units given the labels (eq. 7), then the pixels of one colour of the
checkerboard given the hidden units and the other colour, then those of the other colour (eq. 8).
At T = 1 that leaves p(y, h | x) unchanged, so that the labels come from p(y | x); at any other
temperature it is the alternating sampler of section 4.3, without that guarantee.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield import _native
from crfield._parallel import thread_count
from crfield._validate import InputError, as_count
from crfield.patterns._checks import as_masks
from crfield.patterns.inference import infer
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.model import PatternCRF

Rows = NDArray[np.intp]


class Chains:
    """Markov chains that go on from where they are, some for each image of a batch.

    What they draw depends on the seed, the number of passes so far and the place of an image in the
    batch, not on the number of threads.

    labels : (B, n_chains, H, W) uint8, where they are.
    seed : of all draws.
    n_passes : how many passes there have been.
    """

    def __init__(self, labels: Any, *, seed: int = 0, n_passes: int = 0) -> None:
        array = np.asarray(labels)
        if array.ndim != 4 or array.size == 0:
            raise InputError(
                f"labels must have shape (B, n_chains, height, width), got {array.shape}; "
                "give every image at least one chain."
            )
        n = array.shape[2] * array.shape[3]
        checked = as_masks(array.reshape(-1, n), n)
        self.labels: NDArray[np.uint8] = checked.astype(np.uint8).reshape(array.shape)
        self.seed = as_count(seed, "seed", 0, 2**63 - 1)
        self.n_passes = as_count(n_passes, "n_passes", 0, 2**63 - 1)

    @classmethod
    def start(
        cls, model: PatternCRF, inputs: PatternInputs, n_chains: int, *, seed: int = 0,
        threads: int | None = None,
    ) -> Chains:
        """Chains at the labels that inference starts from, the MAP without patterns."""
        check_samplable(model, inputs)
        first = infer(model.pairwise_only(), inputs, threads=threads).labels
        copies = np.repeat(first[:, None], as_count(n_chains, "n_chains"), 1)
        return cls(copies, seed=seed)

    def advance(
        self, model: PatternCRF, inputs: PatternInputs, *, rows: Any = None,
        n_passes: int = 1, threads: int | None = None,
    ) -> NDArray[np.uint8]:
        """Some full passes, and the labels (b, n_chains, H, W) that they lead to.

        inputs : of all images, or of those numbered `rows`.
        rows : (b,) which images' chains to move; all by default.
        """
        check_samplable(model, inputs)
        moved: Rows = np.arange(len(self.labels)) if rows is None else np.asarray(rows, np.intp)
        if len(inputs) != len(moved) or inputs.grid != self.labels.shape[2:]:
            raise InputError(
                f"inputs must be {len(moved)} images of size {self.labels.shape[2:]}, got "
                f"{len(inputs)} of size {inputs.grid}; pass those whose chains are to move."
            )
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
                rng = np.random.default_rng([self.seed, self.n_passes])
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
    """Label maps (B, n_chains, H, W) after some passes of block Gibbs sampling."""
    chains = Chains.start(model, inputs, n_chains, seed=seed, threads=threads)
    return chains.advance(model, inputs, n_passes=n_passes, threads=threads)


def check_samplable(model: PatternCRF, inputs: PatternInputs) -> None:
    """Refuse what the two colours of a checkerboard do not separate."""
    if not isinstance(model, PatternCRF):
        raise InputError(
            f"model must be a PatternCRF, got {type(model).__name__}; "
            "sampling is for binary labels."
        )
    model.check_inputs(inputs)
    if inputs.pairwise is not None and inputs.pairwise.shape[2] != 2:
        raise InputError(
            "pairwise must join 4 neighbours for sampling, got 8; leave the diagonal edges out."
        )
