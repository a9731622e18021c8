"""Files of models."""
