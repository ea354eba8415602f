"""The mistakes that are known, one module for each family. A new mistake is a class in one of them."""
