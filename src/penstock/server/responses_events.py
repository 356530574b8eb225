"""A turn as OpenAI's Responses API tells it: items, each from its beginning to its end, in numbered events."""

from collections.abc import Iterator
from typing import Any

from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta, ToolCallFinished
from penstock.chat.messages import ToolCall
from penstock.server.errors import ApiError
from penstock.server.service import Usage, new_id

Json = dict[str, Any]


class Progress:
    """The response object, and the events that tell how it comes about.

    A function call is sent once it is complete: a client runs what it is told, and a call that is cut off is no call.
    """

    def __init__(self, model: str, created: int, echo: Json, usage: Usage):
        self.usage, self.finished = usage, False
        self.response: Json = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            **echo,
        }
        self._number = 0
        self._open: _Reasoning | _Text | None = None

    def begin(self) -> Iterator[Json]:
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self.response)

    def read(self, event: Event) -> Iterator[Json]:
        """The events that follow from one of the turn's."""
        match event:
            case ReasoningDelta(text):
                yield from self._more(_Reasoning, text)
            case TextDelta(text):
                yield from self._more(_Text, text)
            case ToolCallFinished(_, call):
                yield from self._close()
                yield from self._call(call)
            case Done(reason):
                yield from self._close("incomplete" if reason == "length" else "completed")
                yield from self._end(reason)
            case _:
                pass  # a call has begun

    def fail(self, error: ApiError) -> Json:
        """The last event of a stream that goes wrong."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._settle("failed")
        self.response["error"] = {"code": code, "message": error.message}
        return self._event("response.failed", response=self.response)

    def _end(self, reason: str) -> Iterator[Json]:
        cut = reason == "length"
        self._settle("incomplete" if cut else "completed")
        self.response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        yield self._event(f"response.{self.response['status']}", response=self.response)

    def _settle(self, status: str) -> None:
        self.finished = True
        self.response["status"] = status
        self.response["usage"] = usage_object(self.usage)

    def _more(self, kind: "type[_Reasoning | _Text]", text: str) -> Iterator[Json]:
        if not isinstance(self._open, kind):
            yield from self._close()
            self._open = kind()
            yield from self._add(self._open.item("in_progress"))
            yield self._part("added", self._open, self._open.part())
        self._open.texts.append(text)
        yield self._in_part(f"{self._open.event}.delta", self._open, delta=text)

    def _close(self, status: str = "completed") -> Iterator[Json]:
        if self._open is None:
            return
        block, self._open = self._open, None
        yield self._in_part(f"{block.event}.done", block, text="".join(block.texts))
        yield self._part("done", block, block.part())
        yield from self._finish(block.item(status))

    def _call(self, call: ToolCall) -> Iterator[Json]:
        item = {"type": "function_call", "id": new_id("fc_"), "call_id": call.id, "name": call.name}
        yield from self._add({**item, "arguments": "", "status": "in_progress"})
        place = {"item_id": item["id"], "output_index": self._index}
        name = "response.function_call_arguments"
        yield self._event(f"{name}.delta", **place, delta=call.arguments)
        yield self._event(f"{name}.done", **place, name=call.name, arguments=call.arguments)
        yield from self._finish({**item, "arguments": call.arguments, "status": "completed"})

    @property
    def _index(self) -> int:
        """Of the item that is being made: those before it are finished."""
        return len(self.response["output"])

    def _add(self, item: Json) -> Iterator[Json]:
        yield self._event("response.output_item.added", output_index=self._index, item=item)

    def _finish(self, item: Json) -> Iterator[Json]:
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self.response["output"].append(item)

    def _part(self, what: str, block: "_Reasoning | _Text", part: Json) -> Json:
        return self._in_part(f"{block.part_event}.{what}", block, part=part)

    def _in_part(self, name: str, block: "_Reasoning | _Text", **fields: Any) -> Json:
        logprobs: Json = {"logprobs": []} if name.startswith(_Text.event) else {}
        place = {"item_id": block.id, "output_index": self._index, block.index: 0}
        return self._event(name, **place, **fields, **logprobs)

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


class _Reasoning:
    """What the model thinks, as a summary: clients show that part, and send it back."""

    event, part_event = "response.reasoning_summary_text", "response.reasoning_summary_part"
    index = "summary_index"

    def __init__(self) -> None:
        self.id = new_id("rs_")
        self.texts: list[str] = []

    def part(self) -> Json:
        return {"type": "summary_text", "text": "".join(self.texts)}

    def item(self, status: str) -> Json:
        summary = [self.part()] if self.texts else []
        return {"type": "reasoning", "id": self.id, "summary": summary, "status": status}


class _Text:
    """The answer."""

    event, part_event = "response.output_text", "response.content_part"
    index = "content_index"

    def __init__(self) -> None:
        self.id = new_id("msg_")
        self.texts: list[str] = []

    def part(self) -> Json:
        return {"type": "output_text", "text": "".join(self.texts), "annotations": [], "logprobs": []}

    def item(self, status: str) -> Json:
        content = [self.part()] if self.texts else []
        return {
            "type": "message",
            "id": self.id,
            "role": "assistant",
            "content": content,
            "status": status,
        }


def usage_object(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
