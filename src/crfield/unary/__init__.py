"""Unary costs from labels, probabilities, logits, scribbles or features."""
