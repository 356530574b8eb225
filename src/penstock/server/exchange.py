"""A request and its answer, as those see it who write it down: known wherever work is done for it."""

import re
import time
import uuid
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.server.service import Usage

SANE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CLIENT_LEFT: Final = 499  # the status that web servers note for whoever did not wait for an answer


@dataclass(slots=True)
class Exchange:
    """error: the kind of error that was answered; failed: it was the model's, and is counted already."""

    id: str
    begun: float = field(default_factory=time.monotonic)
    status: int = CLIENT_LEFT
    error: str = ""
    failed: bool = False
    usages: "list[Usage]" = field(default_factory=list)


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def current_exchange() -> Exchange | None:
    """The one that this task works for."""
    return _current.get()


def begin_exchange(wanted_id: str) -> Exchange:
    """From now on this task, and those that it starts, work for it.  The client's own id is taken if it is one."""
    exchange = Exchange(wanted_id if SANE_ID.fullmatch(wanted_id) else uuid.uuid4().hex)
    _current.set(exchange)
    return exchange
