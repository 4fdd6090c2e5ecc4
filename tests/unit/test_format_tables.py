"""
The byte tables in module docstrings say what the code does.

A row of a table is ``position  size  type  field``; a table is a run of rows that begins at
position 0. Types are ``int64`` or ``i64`` and so on. A row whose size is not a number (``n``) ends
the part that is compared.
"""

from __future__ import annotations

import ast
import importlib
import re
import struct
from pathlib import Path

import pytest

import logstore
from logstore import legacy

ROW = re.compile(r"^ *(\d+) +(\d+) +(u?)(?:int|i|(?<=u))(8|16|32|64) +\S", re.MULTILINE)
LETTERS = {8: "b", 16: "h", 32: "i", 64: "q"}

# What packs and unpacks the tables of each module, in the order of the docstring.
FORMATS = {
    "record": ["records_builder.BATCH_HEADER"],
    "control_record": ["control_record.KEY", "control_record.END_TRANSACTION_VALUE"],
    "index": ["index.OffsetIndex._ENTRY", "index.TimeIndex._ENTRY"],
    "transaction_index": ["transaction_index.ENTRY"],
    "producer_snapshot": ["producer_snapshot.HEADER", "producer_snapshot.ENTRY"],
}
CASES = [
    (module, number, path) for module, paths in FORMATS.items() for number, path in enumerate(paths)
]


def tables(docstring):
    """Return each table of a docstring as a list of (position, size, struct letter)."""
    found = []
    for position, size, unsigned, bits in ROW.findall(docstring):
        letter = LETTERS[int(bits)]
        row = (int(position), int(size), letter.upper() if unsigned else letter)
        if row[0] == 0:
            found.append([])
        found[-1].append(row)
    return found


def resolve(path):
    """Return the object named by ``module.attribute.attribute``."""
    module, *names = path.split(".")
    value = importlib.import_module(f"logstore.{module}")
    for name in names:
        value = getattr(value, name)
    return value


def test_every_table_is_compared():
    """A table that nothing is compared with may say anything."""
    found = {}
    for path in Path(logstore.__file__).parent.glob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if tables(text):
            found[path.stem] = len(tables(text))
    assert {module: len(paths) for module, paths in FORMATS.items()} == found


@pytest.mark.parametrize(("module", "number", "path"), CASES)
def test_table_agrees_with_the_code(module, number, path):
    """Positions follow from sizes, sizes from types; the types are those of the code's Struct."""
    rows = tables(importlib.import_module(f"logstore.{module}").__doc__)[number]

    end = 0
    for position, size, letter in rows:
        assert (end, size) == (position, struct.calcsize(f">{letter}"))
        end += size
    packed = resolve(path)
    assert packed.size == end
    assert packed.format == ">" + "".join(letter for _, _, letter in rows)


def test_legacy_table_agrees_with_the_code():
    """Of a message of format 0 and 1, what lies before the key size has the Struct's size."""
    columns = re.findall(r"^(\d+|  ) +(\d+) +(\d+) +(.*)$", legacy.__doc__, re.MULTILINE)
    for magic in (0, 1):
        rows = [(int(row[magic]), int(row[2]), row[3]) for row in columns if row[magic].strip()]
        end = 0
        for position, size, field in rows:
            if field.startswith("key size"):
                break
            assert end == position
            end += size
        assert end == position == legacy._FIXED[magic].size


def test_parser_reads_both_spellings_and_stops_at_variable_sizes():
    """The parser is as strict as the tables are regular."""
    text = "\n0  2  int16  version\n2  4  u32  id\n6  n  bytes  name\n\n0  8  i64  offset\n"
    assert [[(0, 2, "h"), (2, 4, "I")], [(0, 8, "q")]] == tables(text)
