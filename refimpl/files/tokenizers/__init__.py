"""Text as token ids and back."""

from .tokenizer import ByteTokenizer, Gpt2Tokenizer, LlamaTokenizer, Tokenizer, check_vocabulary
from .tokenizer_files import read_tokenizer

__all__ = ["ByteTokenizer", "Gpt2Tokenizer", "LlamaTokenizer", "Tokenizer", "check_vocabulary", "read_tokenizer"]
