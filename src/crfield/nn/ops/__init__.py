"""Kernel sums on tensors: each folder holds a plain-torch reference beside its Triton kernels."""
