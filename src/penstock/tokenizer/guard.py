"""The border with the `tokenizers` library: its failures become ours.  A panic of its Rust code arrives as
`PanicException`, which derives from BaseException and would pass through every `except Exception`."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError


@contextmanager
def library_errors_as(error_type: type[PenstockError], what: str) -> Iterator[None]:
    """Raise whatever the block fails with as `error_type`, its message opened by `what`."""
    try:
        yield
    except PenstockError:
        raise
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if isinstance(error, MemoryError) or not (is_panic or isinstance(error, Exception)):
            raise
        raise error_type(f"{what}: {error}") from error
