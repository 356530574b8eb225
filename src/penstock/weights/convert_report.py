"""What a conversion wrote, and what it left out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FileReport:
    """One written file."""

    path: Path
    tensors: int
    kept: int  # every number as in the source
    requantised: int  # rounded to the new type
    bytes_by_type: dict[str, int]
    fallbacks: dict[
        str, tuple[str, str]
    ]  # tensor → the mix's type, whose blocks its rows do not fill; type it got
    unweighed: tuple[str, ...]  # rounded without knowing which columns count, where that matters
    blind: tuple[str, ...]  # of those, the ones in IQ2_XXS
    twice: tuple[str, ...]  # rounded from a type that had been rounded to few bits before

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


@dataclass(frozen=True)
class ConvertReport:
    """The files of a conversion and what became of the rest of the model."""

    mix: str
    main: FileReport
    mtp: FileReport | None
    draft: str | None  # the draft module that is not in the main file: "MTP", "DSpark" or none
    left_out: tuple[str, ...]  # tensors of the source that a DeepSeek-V4 text model has no use for
    imatrix: bool = False
    kept_bytes: int = 0  # that an earlier run had written

    @property
    def notes(self) -> list[str]:
        """What the user may not expect, in sentences."""
        notes = []
        if self.kept_bytes:
            notes.append(f"Went on behind {self.kept_bytes:,} bytes that an earlier run had written.")
        if self.draft == "MTP" and self.mtp is None:
            notes.append("The checkpoint has an MTP block, which was not converted; --mtp FILE writes it.")
        elif self.draft == "DSpark":
            notes.append("The checkpoint has a DSpark draft module, which was not converted.")
        for file in (self.main, self.mtp):
            if file is not None:
                notes += self._notes_of(file)
        if self.left_out:
            notes.append(
                f"{len(self.left_out)} tensors of the checkpoint are not part of the text model and were left "
                f"out, the first is {self.left_out[0]}."
            )
        return notes

    def _notes_of(self, file: FileReport) -> list[str]:
        notes = []
        if file.fallbacks:
            kinds = ", ".join(
                f"{got} instead of {wanted}" for wanted, got in sorted(set(file.fallbacks.values()))
            )
            notes.append(
                f"{file.path.name}: {len(file.fallbacks)} tensors became {kinds}: their rows are not whole blocks of "
                f"the type the mix asks for; the first is {next(iter(file.fallbacks))}."
            )
        if file.blind and not self.imatrix:
            notes.append(
                f"{file.path.name}: {len(file.blind)} tensors are in IQ2_XXS without an importance matrix: all "
                "columns count alike. With two bits it matters which do not: `penstock imatrix` makes one, "
                "--imatrix uses it."
            )
        if self.imatrix and file.unweighed:
            notes.append(
                f"{file.path.name}: the importance matrix knows nothing of {len(file.unweighed)} tensors, the first "
                f"is {file.unweighed[0]}."
            )
        if file.twice:
            notes.append(
                f"{file.path.name}: {len(file.twice)} tensors had been rounded to few bits before, the first is "
                f"{file.twice[0]}. What is made of the original checkpoint is better."
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
            "kept_bytes": self.kept_bytes,
            "notes": self.notes,
        }
