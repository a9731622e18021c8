"""The permutohedral lattice on tensors."""
