"""Linearized and softmax attention: feature maps, RoPE, states, caches and memories."""
