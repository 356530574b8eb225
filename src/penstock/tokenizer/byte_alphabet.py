"""GPT-2's byte alphabet: every byte written as one printable character, so that token strings can live in
JSON and GGUF text.  Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and up."""

_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))
_HIDDEN = tuple(byte for byte in range(256) if byte not in _PRINTABLE)

CHAR_OF_BYTE: dict[int, str] = {
    **{byte: chr(byte) for byte in _PRINTABLE},
    **{byte: chr(0x100 + rank) for rank, byte in enumerate(_HIDDEN)},
}
BYTE_OF_CHAR: dict[str, int] = {char: byte for byte, char in CHAR_OF_BYTE.items()}


def to_alphabet(data: bytes) -> str:
    """The token string of `data`: `to_alphabet(b" the") == "Ġthe"`."""
    return "".join(CHAR_OF_BYTE[byte] for byte in data)


def from_alphabet(token: str) -> bytes:
    """The bytes that a token string stands for: `from_alphabet("Ġthe") == b" the"`.

    A string with a character outside the alphabet stands for its own UTF-8, which is what the `tokenizers`
    library decodes it to.
    """
    try:
        return bytes([BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode("utf-8")
