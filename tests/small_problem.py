"""A problem of 42 pixels on which every argument of inference has its right value."""

import numpy as np

from crfield import Bilateral, DenseCRF, FeatureKernel, Pairwise, Potts, Spatial

GRID = (6, 7)
RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (*GRID, 3), dtype=np.uint8)
UNARY = RNG.uniform(0, 3, (*GRID, 2)).astype(np.float32)
PROBABILITIES = RNG.dirichlet(np.ones(4), GRID)
LABELS = RNG.integers(0, 3, GRID)
FEATURES = RNG.normal(size=(42, 2))
POSITIONS = RNG.uniform(0, 5, (42, 2))
MODEL = DenseCRF(2, [
    Pairwise(kernel, Potts(1)) for kernel in (Spatial(2), Bilateral(5, 20), FeatureKernel("f", 2))
])


def infer(**changes):
    arguments = {"image": IMAGE, "unary": UNARY, "features": {"f": FEATURES}, **changes}
    return MODEL.infer(arguments.pop("image"), arguments.pop("unary"), **arguments)
