"""Small pattern models with all their terms, and images for them."""

import numpy as np

from crfield.patterns import ConvolutionalPatterns, PatternCRF, PatternInputs, Patterns

GRID = (2, 3)


def random_problem(seed=0, n=2, n_hidden=3, *, windows=False, dtype=np.float64, **options):
    """A model of 2 x 3 pixels, whose patterns are windows or not, and n images."""
    rng = np.random.default_rng(seed)
    inputs = PatternInputs(
        rng.normal(size=(n, *GRID, 2)).astype(dtype), rng.random((n, 2, 2, *GRID)),
        rng.normal(size=(n, 2)),
    )
    options = {"image_weights": 0.5 * rng.normal(size=(2, n_hidden)), **options}
    if windows:
        shapes = rng.normal(size=(2, 2, n_hidden)).astype(dtype)
        patterns = ConvolutionalPatterns(shapes, 0.2, GRID, **options)
    else:
        shapes = rng.normal(size=(6, n_hidden)).astype(dtype)
        patterns = Patterns(shapes, rng.normal(size=n_hidden), **options)
    bias = 0.3 * rng.normal(size=6)
    weights = {"unary_weight": 0.7, "pairwise_weights": [0.5, 0.9]}
    return PatternCRF(patterns, visible_bias=bias, grid=GRID, **weights), inputs
