"""Shared settings of the tests."""

import os

# The references are small: more BLAS threads only fight with the threads under test.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Triton looks at it once, when whichever test comes first imports `crfield.nn`.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

pytest.register_assert_rewrite("operator_contract")

EXAMPLES = int(os.environ.get("CRFIELD_EXAMPLES", "60"))

# Examples are the same in every run, and nothing depends on how fast the machine is.
settings.register_profile("crfield", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.load_profile("crfield")
