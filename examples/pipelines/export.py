"""
A topic into Parquet and into a database, what has come since the last run.

    python examples/pipelines/export.py --directory shop

Directories are by day, and one file is written for each of them and run, whatever the number of the
topic's partitions. The database is Derby: it comes with Spark and runs within it. From the shell:
``logstore pipeline export``.
"""

from __future__ import annotations

from collections.abc import Sequence

import shop
from pyspark.sql import functions

from logstore.spark.pipelines.export import export
from logstore.spark.pipelines.jdbc_export import export_jdbc


def main(argv: Sequence[str] | None = None) -> None:
    """Run."""
    arguments = shop.parser_of(__doc__).parse_args(argv)
    directory = arguments.directory.resolve()
    store = shop.make_topics(directory)
    spark = shop.session()
    files = export(
        spark,
        store,
        "orders",
        directory / "lake/orders",
        checkpoint=directory / "state/orders-lake",
        schema=shop.ORDER,
        partition_by=["day=date(_timestamp)"],
        target_file_bytes=64 << 20,
    )
    url = f"jdbc:derby:{directory / 'database'};create=true"
    table = export_jdbc(
        spark,
        store,
        "orders",
        url,
        "orders",
        checkpoint=directory / "state/orders-table",
        schema=shop.ORDER,
        # Spark would choose a text of any length, by which Derby can neither sort nor group.
        column_types="customer VARCHAR(8)",
    )
    print(f"Parquet: {files.row_count} records, new files: {files.file_count}")
    print(f"database: {table.row_count} rows")
    rows = spark.read.format("jdbc").options(url=url, dbtable="orders").load()
    for customer, orders, cents in (
        rows.groupBy("customer")
        .agg(functions.count("*"), functions.sum("cents").alias("cents"))
        .orderBy(functions.desc("cents"))
        .limit(3)
        .collect()
    ):
        print(f"  {customer}  {orders} orders  {cents / 100:.2f}")


if __name__ == "__main__":
    main()
