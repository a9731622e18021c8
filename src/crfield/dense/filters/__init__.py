"""Kernels as linear operators on (N, L) arrays; `make_filter` alone chooses which."""

from crfield.dense.filters.base import KernelOperator, TableFilter
from crfield.dense.filters.compiled import (
    FILTERS,
    ExactFilter,
    GridFilter,
    LatticeFilter,
    make_filter,
)
from crfield.dense.filters.kept import KeptFilters

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
