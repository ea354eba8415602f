"""The families of kernels that can be checked, one module each."""
