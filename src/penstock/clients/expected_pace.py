"""How fast a server on this machine should read, as long as it has read nothing that would show it."""

import sys
from functools import partial

from penstock.backend import open_backend
from penstock.bench.expected import expect_here
from penstock.clients.target import Served
from penstock.engine.opening import open_model
from penstock.engine.options import EngineOptions
from penstock.engine.planning import make_engine_plan
from penstock.errors import PenstockError


def expected_pace(served: Served) -> float | None:
    """Tokens of a long prompt per second, as `penstock plan` expects them; None where there is no plan to be made."""
    chosen = EngineOptions(memory=served.memory, draft="off")
    try:
        checkpoint = open_model(served.path, chosen, download=False)
        backend = open_backend("cpu", chosen.thread_count)
        plan, _ = make_engine_plan(checkpoint, chosen, backend, served.context)
        found = expect_here(checkpoint, plan, backend, say=partial(print, file=sys.stderr))
    except PenstockError:
        return None
    return found.prompts[max(found.prompts)].per_second
