"""How a model on Hugging Face is named: `hf:REPO[:FILE]`, and the ways that other programs write it."""

import re
from typing import Final, NamedTuple

from penstock.errors import HubError

SCHEME: Final = "hf:"
_PART: Final = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?"
_REPO: Final = re.compile(rf"{_PART}/{_PART}", re.ASCII)
# Browsers and other programs; pathlib has made one slash of two where the name went through it.
_WEB: Final = re.compile(r"(?:https?:/{1,2})?(?:www\.)?(?:huggingface\.co|hf\.co)/(.+)", re.IGNORECASE)
_IN_A_REPO: Final = re.compile(r"([^/]+/[^/]+)/(?:blob|resolve|raw|tree)/[^/]+(?:/(.*))?")


class Reference(NamedTuple):
    """file: a path in the repository, a quantisation such as Q4_K_M, or part of a name; empty: what there is."""

    repo: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.repo}:{self.file}" if self.file else self.repo


def parse_reference(text: str) -> Reference:
    """Raises HubError for what does not name a repository.

    >>> parse_reference("unsloth/DeepSeek-V4-Flash-0731-GGUF:UD-Q2_K_XL")
    Reference(repo='unsloth/DeepSeek-V4-Flash-0731-GGUF', file='UD-Q2_K_XL')
    >>> parse_reference("https://huggingface.co/a/b/blob/main/c/d.gguf")
    Reference(repo='a/b', file='c/d.gguf')
    """
    name = text.removeprefix(SCHEME).strip()
    if web := _WEB.fullmatch(name):
        name = web[1].partition("?")[0].rstrip("/")
        if inside := _IN_A_REPO.fullmatch(name):
            name = f"{inside[1]}:{inside[2] or ''}"
    repo, _, file = name.strip("/").partition(":")
    if not _REPO.fullmatch(repo) or "--" in repo or ".." in repo:
        raise HubError(f"{text!r} names no repository, expected OWNER/NAME or OWNER/NAME:FILE")
    return Reference(repo, file.strip("/"))


def is_reference(text: str) -> bool:
    """Whether a name is meant for Hugging Face, and is no path."""
    return text.startswith(SCHEME) or _WEB.fullmatch(text) is not None
