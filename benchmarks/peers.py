"""
Contests with other engines that keep ordered records in a file: LMDB, where it is installed.

LMDB is given what it is best at: keys of eight bytes, big-endian, in order; values through
memory that it maps; no record of time, and no check of what is read. A follower has no
counterpart in it: nobody is woken.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values, written_log
from benchmarks.sizes import Size

ROOM = 4  # Times the values: what pages, keys and their tree take.


#: Why there is no LMDB to measure, None: there is.
NO_LMDB: Final = (
    None if importlib.util.find_spec("lmdb") else "lmdb is not installed: pip install lmdb"
)


def _filled(path: Path, values: Values) -> Any:
    """Return an environment with the values, by offset."""
    environment = importlib.import_module("lmdb").open(
        str(path), map_size=values.total_bytes * ROOM + (1 << 20), sync=False, writemap=True
    )
    items = ((at.to_bytes(8, "big"), value) for at, value in enumerate(values.as_list()))
    with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
        cursor.putmulti(items, append=True)
    return environment


def lmdb(directory: Path, size: Size) -> Contest:
    """Iteration over values and single values by offset, from a log and from LMDB."""
    values = Values.of(100, size.read_bytes)
    log = logstore.open(written_log(directory / "peer-0", values, batch_bytes=16 << 10))
    log.roll()  # Sealed segments are mapped, as all of LMDB is.
    environment = _filled(directory / "lmdb", values)
    expected = values.plain["value"][-1].as_py()
    draw = random.Random(5)
    wanted = [draw.randrange(values.count) for _ in range(size.calls)]
    keys = [offset.to_bytes(8, "big") for offset in wanted]

    def iterate(items: Callable[[], Any], watch: Stopwatch) -> None:
        value = None
        with watch.running():
            for value in items():  # noqa: B007
                pass
        assert expected == value

    def iterate_lmdb(watch: Stopwatch) -> None:
        with environment.begin() as transaction:
            iterate(partial(transaction.cursor().iternext, keys=False), watch)

    def get(watch: Stopwatch) -> None:
        with watch.running():
            for offset in wanted:
                record = log[offset]
        assert wanted[-1] == record.offset

    def get_lmdb(watch: Stopwatch) -> None:
        with environment.begin() as transaction:
            look = transaction.get
            with watch.running():
                for key in keys:
                    value = look(key)
        assert values.size == len(value)

    def close() -> None:
        log.close()
        environment.close()

    return Contest(
        "peers: LMDB",
        (
            Variant("values", partial(iterate, log.read_values), "cpu", values.count),
            Variant("lmdb values", iterate_lmdb, "cpu", values.count),
            Variant("get", get, "cpu", size.calls),
            Variant("lmdb get", get_lmdb, "cpu", size.calls),
        ),
        (
            Target("iterate values, of LMDB iternext", "values", "lmdb values", unit="x LMDB"),
            Target(
                "random get of Records, of LMDB get of values", "get", "lmdb get", unit="x LMDB"
            ),
        ),
        close=close,
    )
