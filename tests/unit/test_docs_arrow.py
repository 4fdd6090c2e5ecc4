"""The table of columns in docs/arrow.md is the schema."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import logstore

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.repository
ROOT = Path(__file__).resolve().parents[2]


def page():
    return (ROOT / "docs" / "arrow.md").read_text(encoding="utf-8")


def test_columns(tmp_path):
    """Each column, with its type."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (`[^|]+`) \| ", page(), re.MULTILINE)
    types = {}
    for first, second in rows:
        names, kinds = re.findall(r"`(\w+)`", first), re.findall(r"`([^`]+)`", second)
        types |= dict(zip(names, kinds if len(kinds) > 1 else kinds * len(names), strict=True))
    with logstore.open(tmp_path / "t-0") as log:
        schema = log.scan(columns=list(types)).schema
    said = {
        name: kind.replace("timestamp[ms, UTC]", "timestamp[ms, tz=UTC]")
        for name, kind in types.items()
    }
    found = {field.name: re.sub(r"item: | not null", "", str(field.type)) for field in schema}
    assert said == found
    assert 9 == len(found)
