"""A prompt as biases: exactly (ICLCA), as a memory of fixed size (ICLAA), and how near that comes."""
