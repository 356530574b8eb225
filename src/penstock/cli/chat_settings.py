"""What `/set` shows and changes: how tokens are chosen, how long answers may be, and what surrounds them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from penstock.chat.chat_session import ChatSession
from penstock.chat.messages import THINKING_WORDS, Role, parse_thinking
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError
from penstock.option import Option, options_of

DEFAULT: Final = "default"  # takes back what was set
NONE: Final = "none"
SWITCH: Final = {"on": True, "off": False}


class Setting(NamedTuple):
    """set: takes what was typed."""

    help: str
    value: Callable[[], str]
    set: Callable[[str], None]


class ChatSettings:
    """By name, in the order in which they are listed."""

    def __init__(self, session: ChatSession, sampling: Sampling, max_tokens: int | None, stats: bool):
        self.session, self.sampling, self.max_tokens, self.stats = session, sampling, max_tokens, stats
        self._given = sampling
        declared = [option for option in options_of(Sampling).values() if "chat" in option.commands]
        self._settings = {
            "think": Setting(
                f"reason before answering: {', '.join(THINKING_WORDS)}",
                lambda: str(session.conversation.thinking),
                lambda word: session.set_thinking(parse_thinking(word)),
            ),
            "system": Setting(
                "system text; - removes it", lambda: repr(system_text(session)), self._set_system
            ),
            "max_tokens": Setting(
                "most tokens of an answer",
                lambda: str(self.max_tokens or NONE),
                self._set_max_tokens,
            ),
            "stats": Setting("how fast each answer was", self._show_stats, self._set_stats),
            **{option.name: self._sampled(option) for option in declared},
        }

    def set(self, text: str) -> str:
        """What "NAME VALUE" asks for; returns what to say about it.  A name alone shows the value, nothing at all
        lists everything."""
        name, _, value = text.removeprefix("parameter ").strip().partition(" ")
        if not name:
            return self._all()
        name = name.replace("-", "_")
        if name not in self._settings:
            raise OptionError(f"there is no setting {name!r}; /set lists them")
        setting = self._settings[name]
        if value.strip():
            setting.set(value.strip())
        return f"{name}: {setting.value()}"

    def _all(self) -> str:
        rows = [(name, each.value(), each.help) for name, each in self._settings.items()]
        names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{name:{names}}  {value:{min(values, 24)}}  {help}" for name, value, help in rows]
        return "\n".join([*lines, f"/set NAME VALUE changes one; {DEFAULT} takes a change of sampling back"])

    def _sampled(self, option: Option) -> Setting:
        def value() -> str:
            found = getattr(self.sampling, option.name)
            return option.unset if found is None else f"{found:g}" if isinstance(found, float) else str(found)

        def change(text: str) -> None:
            new = getattr(self._given, option.name) if text == DEFAULT else _parsed(option, text)
            self.sampling = replace(self.sampling, **{option.name: new})

        return Setting(option.help.rstrip("."), value, change)

    def _set_system(self, text: str) -> None:
        self.session.set_system("" if text == "-" else text)

    def _set_max_tokens(self, text: str) -> None:
        if text == NONE:
            self.max_tokens = None
            return
        if not (text.isascii() and text.isdecimal() and int(text) > 0):
            raise OptionError(f"max_tokens is {text!r}, expected a whole number from 1, or {NONE}")
        self.max_tokens = int(text)

    def _show_stats(self) -> str:
        return "on" if self.stats else "off"

    def _set_stats(self, word: str) -> None:
        if word not in SWITCH:
            raise OptionError(f"stats is {word!r}, expected on or off")
        self.stats = SWITCH[word]


def _parsed(option: Option, text: str) -> Any:
    if option.unset and text == NONE:
        return None
    try:
        return option.kind.type(text)
    except ValueError:
        raise OptionError(f"{option.name} is {text!r}, expected {option.kind.expected}") from None


def system_text(session: ChatSession) -> str:
    messages = session.conversation.messages
    return "\n\n".join(message.content for message in messages if message.role is Role.SYSTEM)
