from tests.machine.fake import kernel

__all__ = ["kernel"]
