"""POST /v1/chat/completions, in OpenAI's words with DeepSeek's additions (`reasoning_content`, `thinking`)."""

from collections.abc import AsyncGenerator, Container, Iterator

from fastapi import APIRouter, Request
from fastapi.responses import Response

from penstock.chat.driver import Token
from penstock.chat.events import (
    ArgumentsDelta,
    Done,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    coalesced,
)
from penstock.chat.messages import Conversation, Message, ToolCall
from penstock.engine.progress import PrefillProgress
from penstock.engine.steps import Step
from penstock.server.api.custom_tools import as_input
from penstock.server.api.openai import Choices, finite, token_name
from penstock.server.api.openai_chat_request import ChatRequest
from penstock.server.api.shared import Json
from penstock.server.http.bodies import BodyRoute
from penstock.server.service import Service, service_of
from penstock.server.usage import Usage, timings
from penstock.tokenizer import Tokenizer

router = APIRouter(route_class=BodyRoute)


class ChatChoice:
    """One of the answers to a request."""

    def __init__(self, service: Service, body: ChatRequest, conversation: Conversation, number: int):
        self.usage, self.begun = Usage(), False
        self._service, self._body = service, body
        alternatives = (body.top_logprobs or 0) if body.logprobs else 0
        sampling = body.sampling(number, top_logprobs=alternatives, stop=body.stops)
        self.reply = service.reply(conversation, sampling, **body.rendering())
        self.customs = body.customs
        self.deltas = Deltas(body.customs)
        self._new: dict[str, list[Json]] = {}  # log-probabilities that nobody has taken

    def run(self) -> AsyncGenerator[PrefillProgress | Token, None]:
        limit = self._service.settings.max_tokens if self._body.limit is None else self._body.limit
        return self._service.run(self.reply, limit, self.usage)

    @property
    def tells_progress(self) -> bool:
        return bool(self._body.return_progress)

    def logprobs(self) -> dict[str, list[Json]] | None:
        """Those of the tokens since the last call, reasoning and answer apart as DeepSeek gives them."""
        if not self._body.logprobs:
            return None
        new, self._new = self._new, {}
        return {"content": [], **new}

    def note(self, token: Token) -> None:
        if self._body.logprobs and not token.marker:
            part = self._new.setdefault("reasoning_content" if token.reasoning else "content", [])
            part.append(logprob_object(self._service.engine.tokenizer, token.step))


def message_object(message: Message, customs: Container[str] = ()) -> Json:
    """A whole answer.  customs: tools whose calls have text instead of arguments."""
    result: Json = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        result["reasoning_content"] = message.reasoning
    if message.tool_calls:
        result["content"] = message.content or None
        result["tool_calls"] = [{"id": call.id, **_called(call, customs)} for call in message.tool_calls]
    return result


def _called(call: ToolCall, customs: Container[str]) -> Json:
    if call.name in customs:
        return {"type": "custom", "custom": {"name": call.name, "input": as_input(call.arguments)}}
    return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class Deltas:
    """Pieces of an answer.  What a custom tool is called with comes in one piece: as text, not as JSON."""

    def __init__(self, customs: Container[str]):
        self._customs = customs
        self._called: set[int] = set()  # calls of custom tools

    def of(self, event: Event) -> Json | None:
        """None for what a stream does not tell."""
        match event:
            case ReasoningDelta(text):
                return {"reasoning_content": text}
            case TextDelta(text):
                return {"content": text}
            case ToolCallStarted(index, id, name) if name in self._customs:
                self._called.add(index)
                begun = {"type": "custom", "custom": {"name": name, "input": ""}}
                return {"tool_calls": [{"index": index, "id": id, **begun}]}
            case ToolCallStarted(index, id, name):
                function = {"name": name, "arguments": ""}
                return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
            case ArgumentsDelta(index, fragment) if index not in self._called:
                return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
            case ToolCallFinished(index, call) if index in self._called:
                return {"tool_calls": [{"index": index, "custom": {"input": as_input(call.arguments)}}]}
            case _:
                return None


def progress_object(progress: PrefillProgress) -> Json:
    """In llama.cpp's terms."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.done,
        "time_ms": round(1000 * progress.seconds),
    }


def logprob_object(tokenizer: Tokenizer, step: Step) -> Json:
    def entry(token: int, logprob: float) -> Json:
        raw = list(tokenizer.token_bytes(token))
        return {"token": token_name(tokenizer, token), "logprob": finite(logprob), "bytes": raw}

    top = [entry(token, logprob) for token, logprob in step.top_logprobs]
    return {**entry(step.token, step.logprob), "top_logprobs": top}


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    service = service_of(request)

    def prepare() -> list[ChatChoice]:
        conversation = body.conversation()
        return [ChatChoice(service, body, conversation, number) for number in range(body.choices)]

    choices = await service.work.run(prepare)
    return await ChatChoices(service, body, choices).respond(request)


class ChatChoices(Choices[ChatChoice, PrefillProgress | Token]):
    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def note(self, choice: ChatChoice, update: PrefillProgress | Token) -> None:
        if isinstance(update, Token):
            choice.note(update)

    def finished(self, choice: ChatChoice) -> Json:
        turn, logprobs = choice.reply.turn, choice.logprobs()
        message = message_object(turn.message(), choice.customs)
        return {"message": message, "logprobs": logprobs, "finish_reason": turn.finish_reason}

    def deltas(self, choice: ChatChoice, update: PrefillProgress | Token) -> Iterator[tuple[Json, Json]]:
        """The role, what the model says, the reason why it ended."""

        def part(delta: Json, reason: str | None = None) -> Json:
            return {"delta": delta, "logprobs": choice.logprobs(), "finish_reason": reason}

        self.note(choice, update)
        if not choice.begun:
            choice.begun = True
            yield part({"role": "assistant"}), {}
        if isinstance(update, PrefillProgress) and choice.tells_progress:
            yield part({}), {"prompt_progress": progress_object(update)}
        for event in coalesced(update.events) if isinstance(update, Token) else ():
            if isinstance(event, Done):
                spent = {} if self.body.wants_usage else {"timings": timings(choice.usage)}
                yield part({}, event.finish_reason), spent
            elif delta := choice.deltas.of(event):
                yield part(delta), {}
