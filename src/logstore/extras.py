"""Optional dependencies: imported where they are used, and named with their extra when missing."""

from __future__ import annotations

import importlib
from typing import Any

from logstore.errors import MissingExtraError

# What each optional module comes with: the extra in the metadata of the distribution.
EXTRA_OF = {
    "confluent_kafka": "kafka",
    "fastavro": "formats",
    "google": "formats",
    "orjson": "formats",
    "prometheus_client": "metrics",
    "pyarrow": "arrow",
    "pyspark": "spark-local",
    "rich": "cli",
}


def import_extra(module: str) -> Any:
    """
    Return an optional module, imported.

    Args:
        module: Its import name, dotted if a submodule is wanted.

    Raises:
        MissingExtraError: It is not installed; the message names the extra that brings it.
    """
    top = module.partition(".")[0]
    assert top in EXTRA_OF
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != top:
            raise  # It is there, but something that it needs is not: its own message says what.
        extra = EXTRA_OF[top]
        raise MissingExtraError(
            f"{top} is not installed; install logstore with its extra [{extra}]", extra=extra
        ) from error
