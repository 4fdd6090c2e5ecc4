"""
Formats of a record's value, between bytes and Arrow: JSON, Avro, Protobuf.

Plain Python over kept packages (extra ``formats``) and pyarrow, without Spark; what Spark sees of
it is ``logstore.spark.functions``.
"""

from __future__ import annotations
