"""The schemas of a controller's records, against those in Kafka's jar."""

from __future__ import annotations

import json
import re
import zipfile

import kafka_broker
import pytest

from logstore.metadata_record import SCHEMAS
from logstore.protocol_message import Array, Struct

pytestmark = pytest.mark.skipif(
    kafka_broker.missing() is not None, reason=f"no jars: {kafka_broker.missing()}"
)
COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


@pytest.fixture(name="theirs", scope="module")
def _theirs():
    """Kafka's schema of each type of record."""
    libs = kafka_broker.libs()
    (jar,) = libs.glob("kafka-metadata-*.jar")
    with zipfile.ZipFile(jar) as archive:
        found = [
            json.loads(COMMENT.sub("", archive.read(name).decode()))
            for name in archive.namelist()
            if name.startswith("common/metadata/") and name.endswith("Record.json")
        ]
    return {each["apiKey"]: each for each in found if each["type"] == "metadata"}


def first_version(text):
    return int(re.match(r"\d+", text)[0])


def kafka_type(kind):
    """Its name in a schema; of a struct only that it is one."""
    if isinstance(kind, Array):
        return f"[]{kafka_type(kind.item)}"
    return "struct" if isinstance(kind, Struct) else kind


def of_theirs(field):
    kind = field["type"]
    if "fields" in field:
        kind = f"{'[]' if kind.startswith('[]') else ''}struct"
    # One that is in a version untagged would have to be told apart.
    assert field.get("taggedVersions") in (None, field["versions"])
    return (
        field["name"][0].lower() + field["name"][1:],
        kind,
        first_version(field["versions"]),
        "nullableVersions" in field,
        field.get("tag"),
    )


def of_ours(field):
    return (field.name, kafka_type(field.type), field.first_version, field.is_nullable, field.tag)


def default_of(field):
    """A tagged field's default, as Kafka's generator reads it."""
    told = field.get("default")
    if told is None:
        return [] if field["type"].startswith("[]") else 0
    return None if told == "null" else int(told)


def compare(ours, theirs):
    assert [of_theirs(field) for field in theirs] == [of_ours(field) for field in ours]
    for our, their in zip(ours, theirs, strict=True):
        if "tag" in their:
            assert default_of(their) == our.default
        kind = our.type.item if isinstance(our.type, Array) else our.type
        if isinstance(kind, Struct):
            compare(kind.fields, their["fields"])


def test_every_record(theirs):
    """Names, versions, and each field with its type, version, tag and default."""
    assert theirs.keys() == SCHEMAS.keys()
    for record_type, schema in SCHEMAS.items():
        known = theirs[record_type]
        assert known["name"] == schema.name
        assert int(known["validVersions"].rpartition("-")[2]) == schema.last_version
        assert "0+" == known["flexibleVersions"]
        compare(schema.fields, known["fields"])
