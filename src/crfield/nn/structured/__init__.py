"""Trees, grids and rays as layers."""
