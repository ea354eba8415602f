"""The theorems, by what they speak of."""
