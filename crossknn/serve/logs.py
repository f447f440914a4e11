"""Structured logs: one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Final, TextIO

STANDARD_FIELDS: Final = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"])


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `event` and the record's extra fields; of an exception only its type and place."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS}
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage(), **extra}
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = error_location(record.exc_info[1])
        return json.dumps(line, ensure_ascii=True, default=str)


def error_location(error: BaseException) -> str:
    """The type of an error and where it was raised, without its message, which may quote private texts."""
    origin = error.__cause__ or error
    frames = traceback.extract_tb(origin.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(origin).__name__}{where}"


def log_to(stream: TextIO | None = None) -> None:
    """Write the logs of the service and of its HTTP server to a stream, by default standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, level in (("crossknn.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
