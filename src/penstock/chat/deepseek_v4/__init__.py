"""DeepSeek-V4's chat format: markers, reasoning in `<think>`, tool calls in DSML."""

from collections.abc import Sequence

from penstock.chat.deepseek_v4 import render
from penstock.chat.deepseek_v4.markers import END_THINK
from penstock.chat.deepseek_v4.parse import Parser
from penstock.chat.format import ChatFormat
from penstock.chat.messages import Conversation, Message
from penstock.chat.prompt import Piece, Prompt
from penstock.engine.constraint import Constraint, Constraints


class DeepSeekV4Format(ChatFormat):
    name = "deepseek-v4"
    end_reasoning = END_THINK

    def render(self, conversation: Conversation, continues: bool = False, forced: bool = False) -> Prompt:
        return render.render(conversation, continue_final=continues, force_call=forced)

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
