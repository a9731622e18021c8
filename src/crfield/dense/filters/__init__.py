"""Kernels as linear operators on (N, L) arrays; `make_filter` alone chooses which."""

from crfield.dense.filters.base import KernelOperator, TableFilter
from crfield.dense.filters.choice import FILTERS, make_filter
from crfield.dense.filters.exact import ExactFilter
from crfield.dense.filters.grid import GridFilter
from crfield.dense.filters.kept import KeptFilters
from crfield.dense.filters.lattice import LatticeFilter

__all__ = [
    "FILTERS",
    "ExactFilter",
    "GridFilter",
    "KeptFilters",
    "KernelOperator",
    "LatticeFilter",
    "TableFilter",
    "make_filter",
]
