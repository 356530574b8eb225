"""What is known of the HTTP request that a task works for: its id, and what was answered."""

import re
import time
import uuid
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.server.usage import Usage

if TYPE_CHECKING:
    from penstock.server.http.keys import Key
    from penstock.server.http.work import Room

VALID_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CLIENT_LEFT: Final = 499  # the status that web servers note for clients who did not wait for an answer


@dataclass(slots=True)
class RequestContext:
    """error: the kind of error that was answered; failed: it was the model's, and is counted already.  client: whose
    turn it takes, a key's or an address's; key: what opened the server to it.  body_bytes: of its body, or that it
    may have; room: the memory for it."""

    id: str
    begun: float = field(default_factory=time.monotonic)
    status: int = CLIENT_LEFT
    error: str = ""
    failed: bool = False
    usages: list[Usage] = field(default_factory=list)
    client: str = ""
    key: "Key | None" = None
    body_bytes: int = 0
    room: "Room | None" = None

    @property
    def owner(self) -> str:
        """Whose things it may see; "" where there are no keys."""
        return "" if self.key is None else self.key.owner


_current: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)


def current_request() -> RequestContext | None:
    """The request that this task works for."""
    return _current.get()


def begin_request(wanted_id: str) -> RequestContext:
    """From now on this task, and those that it starts, work for this request.  The client's own id is taken if it is
    valid."""
    context = RequestContext(wanted_id if VALID_ID.fullmatch(wanted_id) else uuid.uuid4().hex)
    _current.set(context)
    return context
