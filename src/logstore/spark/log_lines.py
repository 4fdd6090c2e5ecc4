"""
Lines of the logger ``logstore.spark`` from processes that Spark starts, and nobody else can set up.

A stream's reader lives in one of them. Python prints warnings there by itself, to the driver's
standard error, and nothing below; the environment variable says from which level on.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from logstore.spark.errors import SparkSourceError

VARIABLE: Final = "LOGSTORE_LOG_LEVEL"
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

logger = logging.getLogger("logstore.spark")


def show_log_lines() -> None:
    """
    Print what is at or above the level that ``LOGSTORE_LOG_LEVEL`` says; without it do nothing.

    Where logging is set up already, by Spark or by a program, its handlers stay the only ones.

    Raises:
        SparkSourceError: INVALID_OPTION: it is no level.
    """
    level = os.environ.get(VARIABLE, "").strip().upper()
    if not level:
        return
    if level not in LEVELS:
        raise SparkSourceError(
            "INVALID_OPTION", f"{VARIABLE} is {level!r}; give {', '.join(LEVELS)}"
        )
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
