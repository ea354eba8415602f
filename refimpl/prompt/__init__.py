"""A prompt as biases: exactly (ICLCA), or as a memory of fixed size (ICLAA), with its error."""
