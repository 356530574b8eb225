"""Entries of a store, and another look at it."""

from pathlib import Path

from penstock.backend.state import StateMemory
from penstock.kv.store import KINDS, KvStore
from penstock.kv.store_index import Entry
from tests.kv.saved import PLENTY, made_up


def put(store: KvStore, states: StateMemory, tokens: list[int], kind: str = "prompt") -> Entry:
    assert store.put(tokens, made_up(states, tokens), kind)
    entry = store.find(tokens)
    assert entry is not None
    return entry


def payloads(store: KvStore) -> list[Path]:
    return sorted(path for path in store.folder.iterdir() if path.suffix[1:] in KINDS)


def reopened(store: KvStore, space: int = PLENTY) -> KvStore:
    """Another process's look at the same folder."""
    return KvStore(store.folder, space, store.fingerprint)
