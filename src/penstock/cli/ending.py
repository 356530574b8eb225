"""Why an answer ended, where it is not by the model's own will: in words, and as the status of the process."""

from typing import Final, NamedTuple

from penstock.chat.events import Turn

UNANSWERED: Final = 3  # exit status: the model was cut off where nobody had asked for it


class Words(NamedTuple):
    """What a person could do about it, where they are."""

    limit: str
    less_thinking: str
    more_context: str


IN_RUN: Final = Words("--max-tokens", "a larger -n, or --think off,", "--context makes it larger")
IN_CHAT: Final = Words("max_tokens", "/set max_tokens, or /think off,", "/clear begins anew")


class Ending(NamedTuple):
    words: str
    status: int = 0


def ending(
    turn: Turn, tokens: int, max_tokens: int | None, context: int, words: Words = IN_RUN
) -> Ending | None:
    """None for an answer that the model ended.  A limit that somebody gave and that left an answer is no failure; an
    answer that did not come, or one that the end of the context cut, is."""
    answered = bool("".join(turn.content).strip()) or bool(turn.calls)
    only_thought = bool(turn.reasoning) and not answered
    if turn.finish_reason != "length":
        if turn.stop_string is not None:
            return Ending(f"ended at the stop text {turn.stop_string!r}")
        return None if answered else Ending("the model ended without an answer")
    if max_tokens is not None and tokens >= max_tokens:
        limit = f"{words.limit} {max_tokens}"
        if only_thought:
            used = f"no answer: thinking used up {limit}; {words.less_thinking} leaves room for one"
            return Ending(used, UNANSWERED)
        return Ending(f"cut off by {limit}")
    what = "no answer: thinking has filled" if only_thought else "cut off: the answer has filled"
    return Ending(f"{what} the context of {context:,} tokens; {words.more_context}", UNANSWERED)
