"""Kernels as linear operators on (N, L) arrays; `make_filter` alone chooses which."""

from crfield.filters.base import KernelOperator
from crfield.filters.choice import METHODS, make_filter
from crfield.filters.exact import ExactFilter
from crfield.filters.lattice import LatticeFilter

__all__ = ["METHODS", "ExactFilter", "KernelOperator", "LatticeFilter", "make_filter"]
