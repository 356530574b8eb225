"""The files of DeepSeek-V4-Flash that are known, as `catalog.toml` has them."""

import tomllib
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any

from penstock.hub.reference import Reference


@dataclass(frozen=True, slots=True)
class Known:
    """One published model.  `bytes` is exact, `about` is not; None: not known."""

    name: str
    repo: str
    release: str
    stored: str
    source: list[str]
    file: str = ""
    bytes: int | None = None
    about: int | None = None
    experts: dict[str, str] = field(default_factory=dict)  # first layer → mix; empty: not known
    rest: str = ""

    @property
    def size(self) -> int | None:
        return self.bytes or self.about

    @property
    def reference(self) -> Reference:
        return Reference(self.repo, self.file)

    def mix_of(self, layer: int) -> str:
        """Of the routed experts of a layer."""
        return next(mix for first, mix in reversed(self.experts.items()) if int(first) <= layer)


@dataclass(frozen=True, slots=True)
class Catalog:
    date: date
    sources: dict[str, str]
    models: tuple[Known, ...]


@cache
def read_catalog() -> Catalog:
    found: dict[str, Any] = tomllib.loads(files("penstock.hub").joinpath("catalog.toml").read_text("utf-8"))
    return Catalog(found["date"], found["sources"], tuple(Known(**model) for model in found["models"]))


def short_names(repo: str) -> dict[str, str]:
    """For a repository: names of the catalog → files."""
    return {model.name: model.file for model in read_catalog().models if model.repo == repo and model.file}


def known_by_name(name: str) -> Known | None:
    """The model that is called so, in whatever case."""
    return next((model for model in read_catalog().models if model.name == name.lower()), None)
