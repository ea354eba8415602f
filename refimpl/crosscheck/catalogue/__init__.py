"""The mistakes that are known, one module for each family."""
