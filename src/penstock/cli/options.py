"""What commands share."""

from pathlib import Path

from penstock.pocket import pocket_path


def default_model() -> Path:
    """The model that a command uses when none is named: the pocket model."""
    return pocket_path()
