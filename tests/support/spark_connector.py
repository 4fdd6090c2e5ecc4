"""
Spark's Kafka connector, which the source and the sink here are compared with.

Its jars are fetched once through Maven into ``spark-connector`` of the cache that
``kafka_broker.cache_directory()`` names.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from tests.support.kafka_broker import ROOT, BrokerError, cache_directory, missing

FETCH = ROOT / "tests/compat/oracle/fetch-spark-connector.sh"


def why_not() -> str | None:
    """What is not here that connector and broker need, as the reason of a skip; None: nothing."""
    reason = missing()
    if reason is None and not _is_cached() and shutil.which("mvn") is None:
        reason = f"needs the jars of Spark's Kafka connector in {cache_directory()}, or Maven"
    return reason


def _is_cached() -> bool:
    return (cache_directory() / "spark-connector").is_dir()


def add_connector(spark: Any) -> None:
    """
    Make the format ``kafka`` known to a session that has begun.

    Raises:
        BrokerError: The jars cannot be fetched.
    """
    fetched = subprocess.run(
        ["sh", str(FETCH), str(cache_directory())], capture_output=True, text=True, check=False
    )
    if fetched.returncode != 0:
        raise BrokerError(f"Spark's Kafka connector cannot be fetched: {fetched.stderr.strip()}")
    (directory,) = fetched.stdout.split()
    for jar in sorted((ROOT / directory).glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")
