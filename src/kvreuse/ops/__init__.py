"""The operations of a forward pass: the native kernels and their NumPy twins."""
