"""Chains, trees, grids, graphs and rays as layers and differentiable functions."""
