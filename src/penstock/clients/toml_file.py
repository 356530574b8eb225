"""TOML configuration: one table of it is ours."""

import json
import re
import tomllib
from dataclasses import dataclass

from penstock.clients.config_file import ConfigFile
from penstock.clients.text_edit import with_fields


@dataclass(frozen=True, slots=True)
class TomlTable(ConfigFile):
    """table: its dotted name, of which each part is a bare key."""

    table: str
    fields: dict[str, str | int | bool]

    def merged(self, text: str) -> str:
        try:
            wanted = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self.refusal(f"not TOML ({error})") from None
        inner = wanted
        for part in self.table.split("."):
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise self.refusal(f"{part!r} is expected to be a table")
        inner.update(self.fields)
        new = self._edited(text)
        try:
            understood = tomllib.loads(new) == wanted
        except tomllib.TOMLDecodeError:
            understood = False
        if not understood:  # tables can be written in many ways
            raise self.refusal(f"[{self.table}] is written in a way that cannot be changed here")
        return new

    def _edited(self, text: str) -> str:
        rows = {
            name: f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in self.fields.items()
        }
        lines = text.splitlines()
        heads = [place for place, line in enumerate(lines) if line.lstrip().startswith("[")]
        name = r"\s*\.\s*".join(re.escape(part) for part in self.table.split("."))
        ours = [place for place in heads if re.match(rf"\s*\[\s*{name}\s*\]", lines[place])]
        if not ours:
            gap = [""] if text.strip() else []
            return "\n".join([*lines, *gap, f"[{self.table}]", *rows.values()]) + "\n"
        begin = ours[0] + 1
        end = min((place for place in heads if place >= begin), default=len(lines))
        return "\n".join([*lines[:begin], *with_fields(lines[begin:end], rows), *lines[end:]]) + "\n"
