"""Linearized and softmax attention: φ and RoPE, the forms, and what earlier text is to them."""
