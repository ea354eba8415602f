"""Models, biases and tokenizers on disk."""
