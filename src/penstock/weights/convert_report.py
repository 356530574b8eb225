"""What a conversion wrote, and what it left out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FileReport:
    """One written file.  `fallbacks` are tensors whose rows do not fill the blocks of the mix's type."""

    path: Path
    tensors: int
    kept: int  # every number as in the source
    requantised: int  # rounded to the new type
    bytes_by_type: dict[str, int]
    fallbacks: dict[str, str]  # tensor → type it got

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


@dataclass(frozen=True)
class ConvertReport:
    """The files of a conversion and what became of the rest of the checkpoint."""

    mix: str
    main: FileReport
    mtp: FileReport | None
    draft: str | None  # the draft module of the source: "MTP", "DSpark" or none
    left_out: tuple[str, ...]  # tensors of the source that a DeepSeek-V4 text model has no use for

    @property
    def notes(self) -> list[str]:
        """What the user may not expect, in sentences."""
        notes = []
        if self.draft == "MTP" and self.mtp is None:
            notes.append("The checkpoint has an MTP block, which was not converted; --mtp FILE writes it.")
        elif self.draft == "DSpark":
            notes.append("The checkpoint has a DSpark draft module, which was not converted.")
        for file in (self.main, self.mtp):
            if file is not None and file.fallbacks:
                kinds = ", ".join(sorted(set(file.fallbacks.values())))
                notes.append(
                    f"{file.path.name}: {len(file.fallbacks)} tensors became {kinds}: their rows are not "
                    "whole blocks of the type the mix asks for."
                )
        if self.left_out:
            notes.append(
                f"{len(self.left_out)} tensors of the checkpoint are not part of the text model and were left "
                f"out, the first is {self.left_out[0]}."
            )
        return notes

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mix": self.mix,
            "main": self.main.as_dict(),
            "mtp": self.mtp.as_dict() if self.mtp else None,
            "draft": self.draft,
            "left_out": list(self.left_out),
            "notes": self.notes,
        }
