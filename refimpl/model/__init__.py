"""A transformer: families of layers, the recurrences among them, and text from a model."""
