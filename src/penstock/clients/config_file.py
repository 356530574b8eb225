"""A client's own configuration file: what it is to say, put into what it says already."""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError


class ConfigError(PenstockError):
    """A configuration file that cannot be read, or not be changed without harm."""


@dataclass(frozen=True, slots=True)
class ConfigFile(ABC):
    """`merged` must keep everything that is not Penstock's and raise ConfigError, with the path, for a text that it
    does not understand.  An empty text is a file that does not exist yet."""

    path: Path

    @abstractmethod
    def merged(self, text: str) -> str: ...

    @property
    def alone(self) -> str:
        """The file, if there is nothing else in it."""
        return self.merged("")

    def read(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: cannot be read: {error}") from None

    def written(self) -> bool:
        """Whether it says already what it should."""
        text = self.read()
        return bool(text) and self.merged(text) == text

    def write(self) -> bool:
        """Changes the file at once and whole; the old one is kept as `.bak`.  False: there was nothing to change."""
        old = self.read()
        new = self.merged(old)
        if new == old:
            return False
        try:
            _replace(self.path.resolve(), new)  # a link stays one: people keep such files elsewhere
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error}") from None
        return True

    def refusal(self, why: str) -> ConfigError:
        return ConfigError(f"{self.path}: {why}; nothing was changed, add this by hand:\n\n{self.alone}")


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}."
    )  # for its owner alone: keys are in it
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, name)
            shutil.copy2(path, path.with_name(f"{path.name}.bak"))
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
