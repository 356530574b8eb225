"""llama.cpp's slots: what is being answered, and sessions that are saved and restored by name."""

import re
import time
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, StrictStr

from penstock.engine.requests import SlotState
from penstock.engine.session import Session
from penstock.errors import SnapshotError
from penstock.machine.private import private_folder
from penstock.server.api.shared import refusal
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError
from penstock.server.service import Service, service_of

SLOT_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")

router = APIRouter(route_class=BodyRoute)


@router.get("/slots")
async def slots(request: Request, fail_on_no_slot: bool = False) -> list[dict[str, Any]]:
    """One entry for each request that can be answered at a time.  Busy ones come first: a request has no slot of its
    own, so the entries move up when one ends."""
    service = service_of(request)
    busy = service.scheduler.snapshot()
    count = service.settings.parallel
    if fail_on_no_slot and len(busy) >= count:
        raise ApiError(503, f"all {count} slots are busy", code="unavailable")
    found = [_slot(service, number, progress) for number, progress in enumerate(busy[:count])]
    return found + [_slot(service, number, None) for number in range(len(found), count)]


def _slot(service: Service, number: int, progress: SlotState | None) -> dict[str, Any]:
    slot: dict[str, Any] = {
        "id": number,
        "n_ctx": service.engine.context,
        "speculative": False,
        "is_processing": progress is not None,
    }
    if progress is not None:
        slot |= {
            "n_prompt_tokens": progress.prompt,
            "n_prompt_tokens_processed": progress.read - progress.cached,
            "n_prompt_tokens_cache": progress.cached,
            "next_token": [
                {"has_next_token": True, "n_remain": progress.remaining, "n_decoded": progress.decoded}
            ],
        }
    return slot


class SlotBody(BaseModel):
    filename: StrictStr = ""


@router.post("/slots/{id_slot}")
async def act_on_slot(
    request: Request,
    id_slot: Annotated[int, Path(ge=0)],
    action: Literal["save", "restore", "erase"],
    body: SlotBody | None = None,
) -> dict[str, Any]:
    """Idle sessions belong to whoever continues them, not to a slot.  Slot n is the session that was used n sessions
    before the latest; `restore` makes one the latest again, and `erase` forgets all of them."""
    service = service_of(request)
    if id_slot >= service.settings.parallel:
        raise ApiError(
            400, f"slot {id_slot}: there are slots 0 to {service.settings.parallel - 1}", param="id_slot"
        )
    if action == "erase":
        return {"id_slot": id_slot, "n_erased": service.scheduler.prefix_cache.clear()}
    return await service.work.run_costly(_keep, service, id_slot, action, _slot_file(service, body))


def _keep(service: Service, id_slot: int, action: str, file: "_SlotFile") -> dict[str, Any]:
    begin = time.monotonic()
    if action == "save":
        session = _idle_session(service, id_slot)
        _make_room(service, session.snapshot().nbytes)
        private_folder(file.path.parent)
        session.save(file.path)
    else:
        session = _restored(service, file)
        service.scheduler.prefix_cache.give(session)
    spent = {f"{action}_ms": 1000 * (time.monotonic() - begin)}
    counts = {
        "n_saved" if action == "save" else "n_restored": session.position,
        "n_written" if action == "save" else "n_read": file.path.stat().st_size,
    }
    return {"id_slot": id_slot, "filename": file.name, **counts, "timings": spent}


class _SlotFile(NamedTuple):
    name: str
    path: FilePath


def _slot_file(service: Service, body: SlotBody | None) -> _SlotFile:
    """A file of that name below the folder for sessions, never anywhere else."""
    folder, name = service.settings.kv_dir, body.filename if body else ""
    if folder is None:
        raise ApiError(400, "the server was started without --kv-dir, so there is no place to save to")
    if not SLOT_NAME.fullmatch(name):
        raise refusal("filename", f"{name[:80]!r} is not a name of letters, digits, '.', '-' and '_'")
    return _SlotFile(name, folder / "slots" / name)


def _make_room(service: Service, nbytes: int) -> None:
    """Sessions saved by name are inside the server's disk space, and are never given up for others."""
    disk = service.scheduler.prefix_cache.disk
    if disk is not None:
        try:
            disk.store.make_room(nbytes)
        except SnapshotError as error:
            raise ApiError(507, f"--kv-space: {error}", code="insufficient_storage") from None


def _idle_session(service: Service, number: int) -> Session:
    cache = service.scheduler.prefix_cache
    session = cache.copy(number)
    if session is None:
        raise ApiError(400, f"slot {number}: only {len(cache)} sessions are idle", param="id_slot")
    return session


def _restored(service: Service, file: _SlotFile) -> Session:
    if not file.path.exists():
        raise ApiError(404, f"filename: there is no {file.name!r}", code="not_found", param="filename")
    try:
        return service.engine.load_session(file.path)
    except SnapshotError as error:
        reason = str(error).removeprefix(f"{file.path}: ")
        raise refusal("filename", f"{file.name}: {reason}") from None
