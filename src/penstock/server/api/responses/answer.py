"""The response object, and the events that tell how it comes about."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta, ToolCallFinished
from penstock.chat.messages import ToolCall
from penstock.server.api.custom_tools import as_input
from penstock.server.api.responses.tools import CallableTool
from penstock.server.api.shared import Json, NamedEvents
from penstock.server.http.errors import ApiError
from penstock.server.service import new_id
from penstock.server.usage import Usage


class Answer(NamedEvents):
    """One response.  A call is sent once it is complete: a client runs what it is told, and a call that is cut off is
    no call.  tools: those that can be called, by the names that the model knows."""

    def __init__(
        self,
        model: str,
        created: int,
        echo: Json,
        usage: Usage,
        tools: Mapping[str, CallableTool] | None = None,
    ):
        self.usage, self.tools = usage, tools or {}
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
        self._open: _Block | None = None

    def begin(self) -> Iterator[Json]:
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self.response)

    def read(self, event: Event) -> Iterator[Json]:
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
                self._settle("incomplete" if reason == "length" else "completed")
            case _:
                pass  # a call has begun

    def end(self) -> Iterator[Json]:
        yield self._event(f"response.{self.response['status']}", response=self.response)

    def whole(self) -> Json:
        return self.response

    def fail(self, error: ApiError) -> Json:
        """The last event of a stream that goes wrong."""
        code = {429: "rate_limit_exceeded"}.get(error.status, "server_error")
        if error.code == "shutting_down":
            code = error.code
        self._settle("failed")
        self.response["error"] = {"code": code, "message": error.message}
        return self._event("response.failed", response=self.response)

    def _settle(self, status: str) -> None:
        self.response["status"] = status
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        self.response["incomplete_details"] = cut
        self.response["usage"] = usage_object(self.usage)

    def _more(self, kind: "type[_Block]", text: str) -> Iterator[Json]:
        if not isinstance(self._open, kind):
            yield from self._close()
            self._open = kind(self._new_id(kind.prefix))
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
        tool = self.tools.get(call.name)
        custom = tool is not None and tool.is_custom
        named = {"name": call.name if tool is None else tool.tool.name}
        if tool is not None and tool.namespace is not None:
            named["namespace"] = tool.namespace
        kind, prefix, field = (
            ("custom_tool_call", "ctc_", "input") if custom else ("function_call", "fc_", "arguments")
        )
        said = as_input(call.arguments) if custom else call.arguments
        item = {"type": kind, "id": self._new_id(prefix), "call_id": call.id, **named}
        yield from self._add({**item, field: "", "status": "in_progress"})
        place = {"item_id": item["id"], "output_index": self._index}
        event, whose = f"response.{kind}_{field}", {} if custom else {"name": named["name"]}
        yield self._event(f"{event}.delta", **place, delta=said)
        yield self._event(f"{event}.done", **place, **whose, **{field: said})
        yield from self._finish({**item, field: said, "status": "completed"})

    def _new_id(self, prefix: str) -> str:
        """An item's id tells the response that it belongs to, so that a reference to it can be followed."""
        return item_id(prefix, self.response["id"], self._index)

    @property
    def _index(self) -> int:
        """Of the item that is being made: those before it are finished."""
        return len(self.response["output"])

    def _add(self, item: Json) -> Iterator[Json]:
        yield self._event("response.output_item.added", output_index=self._index, item=item)

    def _finish(self, item: Json) -> Iterator[Json]:
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self.response["output"].append(item)

    def _part(self, what: str, block: "_Block", part: Json) -> Json:
        return self._in_part(f"{block.part_event}.{what}", block, part=part)

    def _in_part(self, name: str, block: "_Block", **fields: Any) -> Json:
        logprobs: Json = {"logprobs": []} if name.startswith(_Text.event) else {}
        place = {"item_id": block.id, "output_index": self._index, block.index: 0}
        return self._event(name, **place, **fields, **logprobs)

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


class _Block(ABC):
    """An item that is a text, while it grows."""

    prefix: ClassVar[str]
    event: ClassVar[str]
    part_event: ClassVar[str]
    index: ClassVar[str]

    def __init__(self, id: str) -> None:
        self.id = id
        self.texts: list[str] = []

    @abstractmethod
    def part(self) -> Json: ...

    @abstractmethod
    def item(self, status: str) -> Json: ...


class _Reasoning(_Block):
    """What the model thinks, as a summary: clients show that part, and send it back."""

    prefix, index = "rs_", "summary_index"
    event, part_event = "response.reasoning_summary_text", "response.reasoning_summary_part"

    def part(self) -> Json:
        return {"type": "summary_text", "text": "".join(self.texts)}

    def item(self, status: str) -> Json:
        summary = [self.part()] if self.texts else []
        return {"type": "reasoning", "id": self.id, "summary": summary, "status": status}


class _Text(_Block):
    """The answer."""

    prefix, index = "msg_", "content_index"
    event, part_event = "response.output_text", "response.content_part"

    def part(self) -> Json:
        return {"type": "output_text", "text": "".join(self.texts), "annotations": [], "logprobs": []}

    def item(self, status: str) -> Json:
        content = [self.part()] if self.texts else []
        return {"type": "message", "id": self.id, "role": "assistant", "content": content, "status": status}


def item_id(prefix: str, response_id: str, index: int) -> str:
    """
    >>> item_id("msg_", "resp_5f3a", 1)
    'msg_5f3a0001'
    """
    return f"{prefix}{response_id.removeprefix('resp_')}{index:04x}"


def usage_object(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
