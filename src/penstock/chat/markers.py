"""The strings of DeepSeek-V4's markers.  Ids always come from the model's own vocabulary."""

from typing import Final

from penstock.errors import TokenError
from penstock.tokenizer import Tokenizer

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
REMINDER: Final = "<｜latest_reminder｜>"
THINK: Final = "<think>"
END_THINK: Final = "</think>"
DSML: Final = "｜DSML｜"  # one token; the `<` or `</` before it and the name after it are ordinary text


def marker_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a marker; TokenError if this model's vocabulary has none."""
    if token == BOS:  # what begins and ends a text is named by the metadata, whatever its spelling
        if tokenizer.bos_id is None:
            raise TokenError("the model's metadata names no BOS token (use --raw)")
        return tokenizer.bos_id
    found = tokenizer.token_id(token)
    if token == EOS and tokenizer.eos_ids and found not in tokenizer.eos_ids:
        return tokenizer.eos_ids[0]
    if found is None or not tokenizer.is_special(found):
        raise TokenError(f"the model's vocabulary has no {token} token: it is not a chat model (use --raw)")
    return found
