"""Everything Penstock raises on purpose.  Each message names the file, field or flag, what was expected
and what was found, so that a person can act on it without reading the code."""


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose.

    >>> try:
    ...     penstock.Engine("nowhere.gguf")
    ... except penstock.PenstockError as error:
    ...     print(error)
    nowhere.gguf: no such file or folder
    """


class ModelFormatError(PenstockError):
    """A model file that cannot be used: damaged, incomplete, inconsistent or of another architecture."""


class ReadError(PenstockError):
    """A file that could not be read as expected: an error of the disk, an early end, a change since it was opened."""


class ContextLengthError(PenstockError):
    """More tokens than the context holds."""


class HubError(PenstockError):
    """A model that cannot be had from Hugging Face, or that is not here under the name it was asked for."""


class TokenError(PenstockError, ValueError):
    """A token id outside the vocabulary, or text that the model has no tokenizer for."""


class RewindError(PenstockError, ValueError):
    """A rewind past what the session still remembers."""


class SnapshotError(PenstockError):
    """A saved session that cannot be read, is damaged, or belongs to another model."""


class TraceError(PenstockError):
    """A recorded trace that cannot be read or written, or does not say what a trace says."""


class OptionError(PenstockError, ValueError):
    """An unknown or impossible value for an option."""


class BudgetError(PenstockError, ValueError):
    """A memory budget that the model cannot run in."""


class ClusterError(PenstockError):
    """A machine of the cluster that is away, does not fit the others, or failed."""


class DeviceLostError(PenstockError):
    """A device that answers no more.  Only another process can use it again."""


class DeviceFullError(PenstockError):
    """A device whose memory is full: with less of it, what failed may work."""


class BusyError(PenstockError):
    """Too much to do already: try again later."""


class ShutdownError(PenstockError):
    """The server is about to end: try another one, or later."""
