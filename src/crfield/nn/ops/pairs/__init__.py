"""The exact sum over all pairs on tensors."""
