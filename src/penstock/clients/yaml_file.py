"""YAML configuration: some of its fields, or one item of a list, are ours."""

import json
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from penstock.clients.config_file import ConfigFile
from penstock.clients.text_edit import indentation, with_fields


@dataclass(frozen=True, slots=True)
class YamlFields(ConfigFile):
    """Plain values at the top of a file."""

    fields: dict[str, str | int | bool]

    def merged(self, text: str) -> str:
        wanted = {**_mapping(self, text), **self.fields}
        rows = {name: f"{name}: {json.dumps(value)}" for name, value in self.fields.items()}
        return _checked(self, "\n".join(with_fields(text.splitlines(), rows)) + "\n", wanted)


@dataclass(frozen=True, slots=True)
class YamlItem(ConfigFile):
    """An item, known by its `name`, of the list `field`.  head: what a new file begins with."""

    field: str
    item: dict[str, Any]
    head: dict[str, str]

    def merged(self, text: str) -> str:
        if not text.strip():
            text = yaml.safe_dump(self.head, sort_keys=False)
        wanted = _mapping(self, text)
        items = wanted.get(self.field) or []
        if not isinstance(items, list):
            raise self.refusal(f"{self.field!r} is expected to be a list")
        places = [place for place, item in enumerate(items) if self._is_ours(item)]
        rest = [item for item in items if not self._is_ours(item)]
        rest.insert(places[0] if places else 0, self.item)
        return _checked(self, self._edited(text), {**wanted, self.field: rest})

    def _edited(self, text: str) -> str:
        lines = text.splitlines()
        head = next((place for place, line in enumerate(lines) if line.startswith(f"{self.field}:")), None)
        if head is None:
            lines.append(f"{self.field}:")
            head = len(lines) - 1
        elif lines[head].split(":", 1)[1].strip() in ("[]", "null", "~"):
            lines[head] = f"{self.field}:"
        begin, end, indent = self._place(lines, head)
        rows = yaml.safe_dump([self.item], sort_keys=False, allow_unicode=True).splitlines()
        return "\n".join([*lines[:begin], *(" " * indent + row for row in rows), *lines[end:]]) + "\n"

    def _place(self, lines: list[str], head: int) -> tuple[int, int, int]:
        """Where the item begins and ends, and how far its dash is from the margin."""
        dashes = []
        for place in range(head + 1, len(lines)):
            if lines[place].startswith(("- ", " ")) and lines[place].lstrip().startswith("- "):
                dashes.append(place)
            elif lines[place].strip() and not lines[place].startswith((" ", "#")):
                break
        indent = indentation(lines[dashes[0]]) if dashes else 2
        ours = [
            place for place in dashes if indentation(lines[place]) == indent and self._begins(lines[place])
        ]
        if not ours:
            return head + 1, head + 1, indent
        end = ours[0] + 1
        while end < len(lines) and lines[end].strip() and indentation(lines[end]) > indent:
            end += 1
        return ours[0], end, indent

    def _begins(self, line: str) -> bool:
        try:
            found = yaml.safe_load(line.strip())
        except yaml.YAMLError:
            return False
        return isinstance(found, list) and self._is_ours(found[0])

    def _is_ours(self, item: Any) -> bool:
        return isinstance(item, dict) and item.get("name") == self.item["name"]


def _mapping(file: ConfigFile, text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise file.refusal(f"not YAML ({' '.join(str(error).split())})") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise file.refusal("expected fields, each with a name")
    return found


def _checked(file: ConfigFile, new: str, wanted: dict[str, Any]) -> str:
    """The new text, if it says exactly what it should."""
    try:
        understood = yaml.safe_load(new) == wanted
    except yaml.YAMLError:
        understood = False
    if not understood:
        raise file.refusal("it is written in a way that cannot be changed here")
    return new
