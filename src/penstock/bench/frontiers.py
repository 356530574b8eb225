"""Context lengths at which speed is measured."""

from penstock.errors import OptionError

UNITS = {"k": 1 << 10, "m": 1 << 20}


def parse_frontiers(text: str) -> list[int]:
    """In rising order, each once.

    >>> parse_frontiers("8k,512,2k")
    [512, 2048, 8192]
    """
    found = set()
    for word in text.lower().split(","):
        digits, unit = (
            (word.strip()[:-1], UNITS[word.strip()[-1]]) if word.strip()[-1:] in UNITS else (word, 1)
        )
        try:
            length = int(digits) * unit
        except ValueError:
            length = 0
        if length < 1:
            raise OptionError(f"--context is {text!r}, expected lengths such as 512,2k,8k")
        found.add(length)
    return sorted(found)


def fit_frontiers(frontiers: list[int], limit: int, decode: int) -> tuple[list[int], str | None]:
    """Those that leave room to decode; the longest possible one stands for all that do not.  And what to say of it.

    >>> fit_frontiers([512, 8192], 4096, 32)
    ([512, 4064], 'the context holds 4,096 tokens: measured up to 4,064 and the 32 decoded after it')
    """
    longest = limit - decode
    if longest < 1:
        raise OptionError(f"--decode is {decode:,}, the context holds {limit:,} tokens")
    if max(frontiers) <= longest:
        return frontiers, None
    note = (
        f"the context holds {limit:,} tokens: measured up to {longest:,} and the {decode:,} decoded after it"
    )
    return sorted({min(frontier, longest) for frontier in frontiers}), note
