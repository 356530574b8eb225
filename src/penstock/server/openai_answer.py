"""What OpenAI's two text APIs have in common in their answers: usage, timings, log-probabilities, errors."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.server.errors import ApiError, openai_envelope
from penstock.server.service import Usage
from penstock.server.sse import data
from penstock.tokenizer import Tokenizer

IMPOSSIBLE: Final = -9999.0  # OpenAI's number for a probability of nothing: JSON has no infinity


def combined(usages: Sequence[Usage]) -> Usage:
    """Several choices for one prompt: the prompt counts once."""
    firsts = [usage.first for usage in usages if usage.first is not None]
    ends = [usage.ended for usage in usages if usage.ended is not None]
    return replace(
        usages[0],
        cached=max(usage.cached for usage in usages),
        completion=sum(usage.completion for usage in usages),
        reasoning=sum(usage.reasoning for usage in usages),
        begun=min(usage.begun for usage in usages),
        first=min(firsts, default=None),
        ended=max(ends, default=None),
    )


def usage_object(usages: Sequence[Usage]) -> dict[str, Any]:
    """Sums over prompts."""
    prompt = sum(usage.prompt for usage in usages)
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached for usage in usages)},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning for usage in usages)},
    }


def timings(usage: Usage) -> dict[str, Any]:
    """As llama.cpp gives them.  Waiting for a turn counts as reading; the rate of decoding counts the tokens after
    the first, which comes with the prompt."""
    ended = usage.ended or time.monotonic()
    first = usage.first or ended
    read = usage.prompt - usage.cached
    reading, decoding = first - usage.begun, ended - first
    return {
        "cache_n": usage.cached,
        "prompt_n": read,
        "prompt_ms": round(1000 * reading, 3),
        "prompt_per_second": round(read / reading, 3) if reading > 0 else 0.0,
        "predicted_n": usage.completion,
        "predicted_ms": round(1000 * decoding, 3),
        "predicted_per_second": (
            round((usage.completion - 1) / decoding, 3) if usage.completion > 1 and decoding > 0 else 0.0
        ),
    }


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""The token as text; one that is only part of a character as OpenAI writes it: `bytes:\xe4\xb8`."""
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    return max(logprob, IMPOSSIBLE)


def failure_chunk(error: ApiError) -> str:
    return data(openai_envelope(error))
