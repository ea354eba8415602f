"""The families of kernels that can be checked, one module each. A new one is found by its file."""
