"""The dense CRF as a layer."""
