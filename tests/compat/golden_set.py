"""
The golden set: log directories of real brokers, packed by family in ``golden/<family>.tar.xz``.

``golden/README.md`` says what is in them and how they were made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

PACKED = Path(__file__).resolve().parent / "golden"


def families() -> list[str]:
    """Names of the packed families."""
    return sorted(path.name.removesuffix(".tar.xz") for path in PACKED.glob("*.tar.xz"))


def expected(family: str) -> dict[str, Any]:
    """Return what Kafka said of a family, without unpacking it."""
    given = os.environ.get("LOGSTORE_GOLDEN")
    if given:
        return json.loads(Path(given, family, "expected.json").read_text())
    with tarfile.open(PACKED / f"{family}.tar.xz") as packed:
        return json.load(packed.extractfile(f"{family}/expected.json"))


def directory(cache: Path) -> Path:
    """
    Return the directory of the unpacked set.

    Args:
        cache: Where to unpack; a family that is there and as new as its archive stays.
    """
    given = os.environ.get("LOGSTORE_GOLDEN")
    if given:
        return Path(given)
    with (cache / ".lock").open("w") as lock:  # Tests run in several processes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _unpack(cache)
    return cache


def _unpack(cache: Path) -> None:
    for family in families():
        archive = PACKED / f"{family}.tar.xz"
        status = archive.stat()
        stamp = f"{status.st_size} {status.st_mtime_ns}"
        stamp_file = cache / f"{family}.stamp"
        if stamp_file.exists() and stamp_file.read_text() == stamp:
            continue
        shutil.rmtree(cache / family, ignore_errors=True)
        with tarfile.open(archive) as packed:
            packed.extractall(cache, filter="data")
        stamp_file.write_text(stamp)
