"""
Errors as Spark passes them on: of an exception in Python only the last line of text arrives.

So each is one line that begins with a stable code, and says topic-partition, offsets, what is valid
and which option changes it::

    LOGSTORE_DATA_LOSS: orders-0: offsets [0, 20) are gone, the log begins at 20; ...

A code is never renamed. Errors of the log itself have the name of their class:
``CorruptRecordError`` is ``LOGSTORE_CORRUPT_RECORD``.
"""

from __future__ import annotations

import re
from typing import Final

from logstore.errors import LogStoreError

PREFIX: Final = "LOGSTORE_"


class SparkSourceError(LogStoreError):
    """
    An error of the data source.

    Attributes:
        condition: Which one, without the prefix; Spark's word for the code.
    """

    def __init__(self, condition: str, text: str) -> None:
        self.condition = condition
        super().__init__(f"{PREFIX}{condition}: {' '.join(text.split())}")


def named(error: BaseException, place: str = "") -> SparkSourceError:
    """
    Return an error of the log as one line with a code.

    Args:
        error: What was raised.
        place: What was being read or written, such as ``orders-0``.
    """
    if isinstance(error, SparkSourceError):
        return error
    name = type(error).__name__.removesuffix("Error")
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    text = str(error) or name
    if place and not text.startswith(place):
        text = f"{place}: {text}"
    return SparkSourceError(code, text)
