"""The dense CRF: kernels, filters, mean-field inference and its gradient."""
