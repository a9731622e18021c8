"""Kernels as linear operators on (N, L) arrays; `make_filter` alone chooses which."""

from crfield.filters.base import KernelOperator, TableFilter
from crfield.filters.choice import METHODS, make_filter
from crfield.filters.exact import ExactFilter
from crfield.filters.grid import GridFilter
from crfield.filters.kept import KeptFilters
from crfield.filters.lattice import LatticeFilter

__all__ = [
    "METHODS",
    "ExactFilter",
    "GridFilter",
    "KeptFilters",
    "KernelOperator",
    "LatticeFilter",
    "TableFilter",
    "make_filter",
]
