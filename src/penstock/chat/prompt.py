"""DeepSeek-V4's prompt for one question.

Markers go in by id and text is encoded without looking for markers, so nothing that a user types can pose as one.
"""

from penstock.errors import TokenError
from penstock.tokenizer import Tokenizer

USER, ASSISTANT, THINK, END_THINK = "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"


def marker(tokenizer: Tokenizer, token: str) -> int:
    """Id of a marker; TokenError if this model's vocabulary has none."""
    found = tokenizer.token_id(token)
    if found is None:
        raise TokenError(f"the model's vocabulary has no {token} token: it is not a chat model (use --raw)")
    return found


def single_turn(tokenizer: Tokenizer, user: str, system: str = "", thinking: bool = False) -> list[int]:
    """BOS system <｜User｜>user<｜Assistant｜>, then `<think>` to let the model reason or `</think>` to answer."""
    if tokenizer.bos_id is None:
        raise TokenError("the model's metadata names no BOS token (use --raw)")
    return [
        tokenizer.bos_id,
        *tokenizer.encode(system),
        marker(tokenizer, USER),
        *tokenizer.encode(user),
        marker(tokenizer, ASSISTANT),
        marker(tokenizer, THINK if thinking else END_THINK),
    ]
