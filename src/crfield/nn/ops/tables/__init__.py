"""Splat, blur and slice through tables of rows."""
