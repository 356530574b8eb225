"""DeepSeek-V4's chat format: markers, reasoning in `<think>`, tool calls in DSML."""

from collections.abc import Iterable, Sequence

from penstock.chat.deepseek_v4 import render
from penstock.chat.deepseek_v4.markers import END_THINK
from penstock.chat.deepseek_v4.parse import Parser
from penstock.chat.deepseek_v4.render import Encoding
from penstock.chat.format import ChatFormat
from penstock.chat.messages import Conversation, Message
from penstock.chat.prompt import Piece, Prompt
from penstock.engine.constraint import Constraint, Constraints

# What only the later release has: its name in that of the model, and the text that it says at its highest effort.
_NAMES_0731 = ("0731", "0813")
_TEMPLATE_0731 = "Beyond maximum"


def encoding_of(names: Iterable[str], template: str, has_dspark: bool) -> Encoding:
    """Which release a model speaks, by what is said of it: its names, its template, the kind of its draft."""
    named = any(release in name for name in names for release in _NAMES_0731)
    return Encoding.V0731 if named or has_dspark or _TEMPLATE_0731 in template else Encoding.APRIL


class DeepSeekV4Format(ChatFormat):
    """encoding: the release, for conversations that name none."""

    name = "deepseek-v4"
    end_reasoning = END_THINK

    def __init__(self, encoding: Encoding = Encoding.APRIL):
        self.encoding = encoding

    def render(self, conversation: Conversation, continues: bool = False, forced: bool = False) -> Prompt:
        return render.render(
            conversation, encoding=self.encoding, continue_final=continues, force_call=forced
        )

    def said(self, message: Message) -> tuple[Piece, ...]:
        return render.said(message)

    def parser(self, conversation: Conversation, prompt: Prompt, stop: Sequence[str] = ()) -> Parser:
        return Parser(
            thinking=prompt.thinking,
            tools=bool(conversation.functions),
            stop=stop,
            continuing=prompt.continues,
            forced=prompt.forced,
        )

    def constraint(
        self, constraints: Constraints, conversation: Conversation, prompt: Prompt
    ) -> Constraint | None:
        from penstock.chat.deepseek_v4 import grammar  # few turns need one

        last = conversation.messages[-1]
        begun = (last.content or last.reasoning or "") if prompt.continues else ""
        return grammar.turn_constraint(
            constraints, conversation, thinking=prompt.thinking, force_call=prompt.forced, begun=begun
        )
