"""One choice of a chat completion: how it is made, and what its parts look like."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from penstock.chat.events import ArgumentsDelta, Event, ReasoningDelta, TextDelta, ToolCallStarted
from penstock.chat.markers import END_THINK
from penstock.chat.messages import Conversation, Message, Thinking
from penstock.engine.requests import Reading
from penstock.engine.steps import Step
from penstock.server.openai_answer import finite, token_name
from penstock.server.openai_chat_request import ChatRequest
from penstock.server.service import Service, Token, Usage
from penstock.tokenizer import Tokenizer


class Choice:
    """One of the answers to a request."""

    def __init__(self, service: Service, body: ChatRequest, conversation: Conversation, number: int):
        self.usage = Usage()
        self.thinks = conversation.thinking is not Thinking.OFF and not body.forces_call
        self._service, self._body, self._conversation = service, body, conversation
        alternatives = (body.top_logprobs or 0) if body.logprobs else 0
        self._sampling = replace(body.sampling(number, top_logprobs=alternatives), stop=body.stops)
        self._new: dict[str, list[dict[str, Any]]] = {}  # log-probabilities that nobody has taken

    async def run(self) -> AsyncGenerator[Reading | Token, None]:
        """What happens."""
        service, body = self._service, self._body
        limit = service.settings.max_tokens if body.limit is None else body.limit
        stream = service.chat(
            self._conversation, limit, self._sampling, self.usage, force_call=body.forces_call
        )
        async with aclosing(stream):
            async for update in stream:
                if isinstance(update, Token):
                    self._note(update)
                yield update

    def logprobs(self) -> dict[str, list[dict[str, Any]]] | None:
        """Those of the tokens since the last call, reasoning and answer apart as DeepSeek gives them."""
        if not self._body.logprobs:
            return None
        new, self._new = self._new, {}
        return {"content": [], **new}

    def _note(self, token: Token) -> None:
        if not self._body.logprobs:
            return
        tokenizer, step = self._service.engine.tokenizer, token.step
        ends_reasoning = token.reasoning and step.token == tokenizer.token_id(END_THINK)
        if not ends_reasoning and step.token not in tokenizer.eos_ids:
            part = self._new.setdefault("reasoning_content" if token.reasoning else "content", [])
            part.append(_logprob_object(tokenizer, step))


def message_object(message: Message) -> dict[str, Any]:
    """A whole answer."""
    result: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        result["reasoning_content"] = message.reasoning
    if message.tool_calls:
        result["content"] = message.content or None
        result["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return result


def delta_object(event: Event) -> dict[str, Any] | None:
    """A piece of an answer; None for what a stream does not tell."""
    match event:
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case TextDelta(text):
            return {"content": text}
        case ToolCallStarted(index, id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
        case ArgumentsDelta(index, fragment):
            return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
        case _:
            return None


def _logprob_object(tokenizer: Tokenizer, step: Step) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        raw = list(tokenizer.token_bytes(token))
        return {"token": token_name(tokenizer, token), "logprob": finite(logprob), "bytes": raw}

    top = [entry(token, logprob) for token, logprob in step.top_logprobs]
    return {**entry(step.token, step.logprob), "top_logprobs": top}
