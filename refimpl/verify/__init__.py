"""The theorems, and the evidence for them."""
