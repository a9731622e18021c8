"""The coarse grid of a spatial kernel on tensors."""
