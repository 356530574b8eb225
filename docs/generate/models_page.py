"""The table of docs/models.md, made from the catalog and the planner: `make docs` writes it, and a test fails when it
is stale."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.backend import open_backend
from penstock.cli.fitness import CONTEXT
from penstock.engine.options import EngineOptions
from penstock.engine.planning import make_engine_plan
from penstock.hub.catalog import Known, read_catalog
from penstock.hub.outline import outline_known
from penstock.machine.memory import Memory
from penstock.weights.opening import open_checkpoint

GIB = 1 << 30
THREADS = 8  # the same table on every machine
BEGIN, END = "<!-- models: ", "<!-- end -->"


def page(text: str) -> str:
    """The page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    comment, _, after = rest.partition("\n")
    _, _, after = after.partition(END)
    table = "\n".join(_lines())
    return f"{before}{BEGIN}{comment}\n{table}\n{END}{after}"


def _lines() -> Iterator[str]:
    catalog = read_catalog()
    yield f"As known on {catalog.date}:"
    yield ""
    yield "| name | release | size | runs from | experts stream | in memory | stored | where |"
    yield "|---|---|---|---|---|---|---|---|"
    for known in catalog.models:
        size = f"{'' if known.bytes else '≈ '}{known.size / 1e9:.1f} GB" if known.size else "unknown"
        where = f"[{known.repo}](https://huggingface.co/{known.repo})"
        budgets = " | ".join(
            f"{-(-nbytes // GIB)} GiB" if nbytes else "unknown" for nbytes in _budgets(known)
        )
        yield f"| `{known.name}` | {known.release} | {size} | {budgets} | {known.stored} | {where} |"
    yield ""
    used = {name for known in catalog.models for name in known.source}
    yield f"Sources: {'; '.join(text for name, text in catalog.sources.items() if name in used)}."


def _budgets(known: Known) -> tuple[int | None, int | None, int | None]:
    """The least memory, what keeps everything but experts, and what keeps all; a gigabyte of the latter two is for
    the program, the context and the prompt."""
    with TemporaryDirectory() as folder:
        path = outline_known(known, Path(folder))
        if path is None:
            return None, None, None
        checkpoint = open_checkpoint(path)
        options = EngineOptions(draft="off", streaming="mmap", threads=THREADS)
        memory = Memory(total=1 << 50, available=1 << 50, swap=0)
        plan, _ = make_engine_plan(checkpoint, options, open_backend("cpu", THREADS), CONTEXT, memory)
    used = 2 * checkpoint.config.experts_used * plan.expert_bytes
    return plan.smallest, plan.dense + used + GIB, plan.dense + plan.experts_total + GIB
