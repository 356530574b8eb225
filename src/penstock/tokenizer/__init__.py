"""Text to token ids and back, from GGUF metadata or a tokenizer.json.

Knows nothing of models, conversations or servers: a marker such as `<｜User｜>` is a token like any other,
except that text becomes one only when the caller says so.
"""

from penstock.tokenizer.gguf import tokenizer_from_gguf, tokenizer_to_gguf
from penstock.tokenizer.json_file import tokenizer_from_json
from penstock.tokenizer.stream import StreamDecoder
from penstock.tokenizer.synthetic import MIN_BYTE_VOCABULARY, byte_tokenizer_metadata
from penstock.tokenizer.tokenizer import Tokenizer
from penstock.tokenizer.vocabulary import TokenKind

__all__ = [
    "MIN_BYTE_VOCABULARY",
    "StreamDecoder",
    "TokenKind",
    "Tokenizer",
    "byte_tokenizer_metadata",
    "tokenizer_from_gguf",
    "tokenizer_from_json",
    "tokenizer_to_gguf",
]
