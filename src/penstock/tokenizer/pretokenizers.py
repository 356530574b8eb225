"""Pre-tokenizers by name: how text is cut into pieces before BPE merges within each piece.

A GGUF file stores only the name (`tokenizer.ggml.pre`), a tokenizer.json the regexes themselves; this module
goes both ways.  A new one is a function and a line in PRE_TOKENIZERS.
"""

import json
from collections.abc import Callable
from typing import Any

from tokenizers import Regex
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from penstock.errors import ModelFormatError
from penstock.tokenizer.guard import library_errors_as
from penstock.tokenizer.messages import shown

# Applied one after the other; each isolates its matches, and what lies between is cut by the next.
_DEEPSEEK_SPLITS = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"""|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*"""
    r"""|\s*[\r\n]+"""
    r"""|\s+(?!\S)"""
    r"""|\s+""",
)


def _deepseek() -> PreTokenizer:
    splits = [Split(Regex(pattern), "isolated") for pattern in _DEEPSEEK_SPLITS]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


# Where several names mean the same splits, the first is the one written to new files.
PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "joyai-llm": _deepseek,  # the name under which converters file DeepSeek-V4's vocabulary
    "deepseek-v3": _deepseek,
    "gpt-2": _gpt2,
}


def pre_tokenizer_by_name(name: object, where: str) -> PreTokenizer:
    """The pre-tokenizer of that name; `where` (file and key) opens the error for an unknown one."""
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise ModelFormatError(f"{where}: expected one of {', '.join(PRE_TOKENIZERS)}; found {shown(name)}")
    return PRE_TOKENIZERS[name]()


def pre_tokenizer_from_json(description: Any, where: str) -> PreTokenizer:
    """The pre-tokenizer that a tokenizer.json describes: any regexes, as long as it is byte-level."""
    # The library reads a pre-tokenizer only as part of a whole tokenizer.
    shell = {"version": "1.0", "pre_tokenizer": description, "added_tokens": []}
    shell["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    with library_errors_as(ModelFormatError, where):
        pre_tokenizer: PreTokenizer | None = LibraryTokenizer.from_str(json.dumps(shell)).pre_tokenizer
    if pre_tokenizer is None or all(step.get("type") != "ByteLevel" for step in _steps(description)):
        raise ModelFormatError(f"{where}: expected a ByteLevel step; found {shown(description)}")
    return pre_tokenizer


def pre_tokenizer_name(pre_tokenizer: PreTokenizer, where: str) -> str:
    """The name under which a GGUF file can store this pre-tokenizer."""
    description = _describe(pre_tokenizer)
    for name, build in PRE_TOKENIZERS.items():
        if _canonical(_describe(build())) == _canonical(description):
            return name
    raise ModelFormatError(
        f"{where}: expected the splits of one of {', '.join(PRE_TOKENIZERS)}; found {shown(description)}"
    )


def is_known(pre_tokenizer: PreTokenizer) -> bool:
    """Whether it is one of these."""
    description = _canonical(_describe(pre_tokenizer))
    return any(_canonical(_describe(build())) == description for build in PRE_TOKENIZERS.values())


def _describe(pre_tokenizer: PreTokenizer) -> Any:
    state: bytes = pre_tokenizer.__getstate__()
    return json.loads(state)


def _steps(description: Any) -> list[dict[str, Any]]:
    """The steps of a possibly nested Sequence that the library has accepted, in order."""
    if description["type"] == "Sequence":
        return [step for part in description["pretokenizers"] for step in _steps(part)]
    return [description]


def _canonical(description: Any) -> list[Any]:
    """The steps with everything that cannot change a token removed: equal lists mean equal splits."""
    canonical = []
    for step in _steps(description):
        known = dict(step)
        if known.get("type") == "ByteLevel":
            known.pop("trim_offsets", None)  # moves offsets only
        pattern = known.get("pattern")
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            # DeepSeek's file holds raw CR and LF characters inside its classes, where others write escapes.
            known["pattern"] = pattern["Regex"].replace("\r", r"\r").replace("\n", r"\n")
        canonical.append(known)
    return canonical
