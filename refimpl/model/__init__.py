"""A transformer, its families of layers, the recurrences among them, and generation of text."""
