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

    def contradicts(self) -> bool:
        """Whether the file has other values where it is to have ours."""
        try:
            old = json.loads(self.read() or "{}")
        except (ValueError, RecursionError):
            return False  # nobody can tell what it says
        return _differs(old, self.content)

    def _merge(self, old: Any, new: dict[str, Any], place: str) -> dict[str, Any]:
        if not isinstance(old, dict):
            raise self.refusal(f"{place} is expected to be an object, found {json.dumps(old)[:40]}")
        merged = dict(old)
        for name, value in new.items():
            inside = isinstance(value, dict)
            merged[name] = self._merge(old.get(name, {}), value, f"{name!r}") if inside else value
        return merged


def _differs(old: Any, new: Any) -> bool:
    """Whether a value of `new` is another one in `old`; what is not there does not differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return any(name in old and _differs(old[name], value) for name, value in new.items())
    return bool(old != new)
