"""JSON configuration: objects are merged, everything else is replaced."""

import json
from dataclasses import dataclass
from typing import Any

from penstock.clients.config_file import ConfigFile


@dataclass(frozen=True, slots=True)
class JsonFile(ConfigFile):
    content: dict[str, Any]

    def merged(self, text: str) -> str:
        try:
            old = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise self.refusal(f"not JSON, or with comments in it ({error})") from None
        new = self._merge(old, self.content, "the file")
        return text if new == old else json.dumps(new, indent=2, ensure_ascii=False) + "\n"

    def _merge(self, old: Any, new: dict[str, Any], place: str) -> dict[str, Any]:
        if not isinstance(old, dict):
            raise self.refusal(f"{place} is expected to be an object, found {json.dumps(old)[:40]}")
        merged = dict(old)
        for name, value in new.items():
            inside = isinstance(value, dict)
            merged[name] = self._merge(old.get(name, {}), value, f"{name!r}") if inside else value
        return merged
