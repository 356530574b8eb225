"""DeepSeek-V4's chat format: markers, reasoning in `<think>`, tool calls in DSML."""

from collections.abc import Sequence

from penstock.chat.deepseek_v4 import grammar, render
from penstock.chat.deepseek_v4.markers import END_THINK
from penstock.chat.deepseek_v4.parse import Parser
from penstock.chat.format import ChatFormat
from penstock.chat.messages import Conversation, Message
from penstock.chat.prompt import Piece, Prompt
from penstock.engine.constraint import Constraint, Constraints


class DeepSeekV4Format(ChatFormat):
    name = "deepseek-v4"
    end_reasoning = END_THINK

    def render(
        self, conversation: Conversation, *, continue_final: bool = False, force_call: bool = False
    ) -> Prompt:
        return render.render(conversation, continue_final=continue_final, force_call=force_call)

    def said(self, message: Message) -> tuple[Piece, ...]:
        return render.said(message)

    def parser(
        self,
        conversation: Conversation,
        prompt: Prompt,
        stop: Sequence[str] = (),
        *,
        continue_final: bool = False,
        force_call: bool = False,
    ) -> Parser:
        return Parser(
            thinking=prompt.thinking,
            tools=bool(conversation.tools),
            stop=stop,
            continuing=continue_final,
            forced=force_call,
        )

    def constrains(self, conversation: Conversation) -> bool:
        return grammar.is_constrained(conversation)

    def constraint(
        self,
        constraints: Constraints,
        conversation: Conversation,
        prompt: Prompt,
        *,
        continue_final: bool = False,
        force_call: bool = False,
    ) -> Constraint | None:
        last = conversation.messages[-1]
        begun = (last.content or last.reasoning or "") if continue_final else ""
        return grammar.turn_constraint(
            constraints, conversation, thinking=prompt.thinking, force_call=force_call, begun=begun
        )
