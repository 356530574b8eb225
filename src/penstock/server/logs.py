"""What the server writes down: a line for each event, for people or as JSON, on standard error or in a file.

A file that was moved away is made anew for the next line, so that logs can be rotated at any time; SIGHUP, with which
that is usually announced, harms nobody.
"""

import json
import logging
import signal
import sys
import threading
import warnings
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final

from penstock.errors import OptionError
from penstock.server.exchange import current_exchange

LEVELS: Final = ("debug", "info", "warning", "error")
CHATTY: Final = ("uvicorn", "asyncio")  # they tell what we tell ourselves


def start_logging(level: str = "info", as_json: bool = False, file: Path | None = None) -> None:
    """For the whole process: also for what libraries log, and for warnings."""
    if level not in LEVELS:
        raise OptionError(f"--log-level is {level!r}, expected one of {', '.join(LEVELS)}")
    try:
        handler = (
            logging.StreamHandler(sys.stderr) if file is None else WatchedFileHandler(file, encoding="utf-8")
        )
    except OSError as error:
        raise OptionError(f"--log-file {file}: {error.strerror}") from None
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel("INFO" if level == "debug" else max(root.level, logging.WARNING))
    warnings.showwarning = _warned  # type: ignore[assignment]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda *_: None)


def fields(**found: Any) -> dict[str, Any]:
    """What a line says besides its message: `log.info("request", extra=fields(status=200))`"""
    return {"fields": {name: value for name, value in found.items() if value is not None}}


class TextLines(logging.Formatter):
    """2026-11-15 09:30:00.123 INFO  request status=200 agent="curl/8.5.0 (linux)"

    What comes from a client is quoted, so that it can neither end a line nor look like another field.
    """

    def format(self, record: logging.LogRecord) -> str:
        found = _fields(record)
        text = "".join(f" {name}={_plain(value)}" for name, value in found.items())
        when = datetime.fromtimestamp(record.created).isoformat(" ", "milliseconds")
        line = f"{when} {record.levelname:<7} {record.getMessage()}{text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One JSON object for each event."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """With the request that the line belongs to."""
    found: dict[str, Any] = getattr(record, "fields", {})
    exchange = current_exchange()
    return found if exchange is None or "id" in found else {"id": exchange.id, **found}


def _plain(value: object) -> str:
    text = str(value)
    simple = text.isascii() and text.isprintable() and not set(text) & set(" \"'=\\")
    return text if simple and text else json.dumps(text)


def _warned(message: Warning | str, *_: object) -> None:
    logging.getLogger("penstock").warning(str(message))
