"""Pipelines run, are run again, and are killed in between: each row is there once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("orjson", reason="needs the extra [formats]")
pytest.importorskip("fastavro", reason="needs the extra [formats]")

import pyarrow.parquet as pq

import logstore
from logstore.cli import main
from logstore.spark.errors import SparkSourceError
from logstore.spark.pipelines.export import export
from logstore.spark.pipelines.ingest import ingest
from logstore.spark.pipelines.pipeline_state import PipelineState

FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
DAY_MS = 86_400_000
NEW_YEAR_MS = 1_356_998_400_000  # 2013


def test_files_into_a_topic(spark, tmp_path):
    """The schema of the first run stays; a file that comes later is taken by the next run."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("id,name,time\n1,x,2013-01-01T12:00:00Z\n2,,\n")

    def run():
        return ingest(
            spark,
            tmp_path / "in",
            tmp_path / "data",
            "rows",
            checkpoint=tmp_path / "state",
            file_format="csv",
            options={"header": "true"},
            key="id",
            timestamp="time",
            partitions=2,
        )

    assert (2, "rows", "struct<id:int,name:string,time:timestamp>") == run()
    assert 0 == run().row_count
    (tmp_path / "in/b.csv").write_text("id,name,time\n3,z,2013-01-01T00:00:01Z\n")
    assert 1 == run().row_count
    with logstore.open_store(tmp_path / "data") as store:
        records = {record.key: record for log in store["rows"].logs() for record in log}
        assert [] == list(store.check())
    assert {b"1", b"2", b"3"} == records.keys()
    assert {"id": 3, "name": "z", "time": "2013-01-01T00:00:01.000Z"} == json.loads(
        records[b"3"].value
    )
    assert (1_357_041_600_000, NEW_YEAR_MS + 1000) == (
        records[b"1"].timestamp,
        records[b"3"].timestamp,
    )
    with pytest.raises(SparkSourceError, match="PIPELINE_CHECKPOINT"):
        PipelineState.of(str(tmp_path / "state"), "export", "rows", lambda: None)


def test_rows_of_many_micro_batches(spark, tmp_path):
    """All are counted, also those of batches whose progress Spark has forgotten."""
    (tmp_path / "in").mkdir()
    for at in range(25):
        (tmp_path / f"in/{at}.txt").write_text("a\nb\n")
    kept = "spark.sql.streaming.numRecentProgressUpdates"
    before = spark.conf.get(kept)
    spark.conf.set(kept, "12")
    try:
        done = ingest(
            spark,
            tmp_path / "in",
            tmp_path / "data",
            "lines",
            checkpoint=tmp_path / "state",
            file_format="text",
            options={"maxFilesPerTrigger": "1"},
            value_format="raw",
        )
    finally:
        spark.conf.set(kept, before)
    assert 50 == done.row_count
    with logstore.open_store(tmp_path / "data", mode="r") as store:
        assert 50 == sum(1 for _ in store["lines", 0])


def test_a_first_run_that_was_wrong(spark, tmp_path):
    """What it took for the columns does not stay."""
    (tmp_path / "in").mkdir()

    def run(**options):
        return ingest(
            spark,
            tmp_path / "in",
            tmp_path / "data",
            "rows",
            checkpoint=tmp_path / "state",
            file_format="csv",
            options=options,
            key="id",
        )

    with pytest.raises(SparkSourceError, match="wait for the first file"):
        run()
    (tmp_path / "in/a.csv").write_text("id,name\n1,x\n")
    with pytest.raises(SparkSourceError, match="the columns are _c0, _c1"):
        run()
    assert 1 == run(header="true").row_count


def test_errors_of_spark_in_one_line(spark, tmp_path, capsys):
    """A file that is no Parquet, as the command says it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.parquet").write_bytes(b"no Parquet")
    command = ["pipeline", "ingest", tmp_path / "data", "rows", tmp_path / "in"]
    assert 2 == main([*map(str, command), "--checkpoint", str(tmp_path / "state")])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("logstore: LOGSTORE_PIPELINE_FAILED: ")
    assert "a.parquet is not a Parquet file" in line
    assert not (tmp_path / "state").exists()


class TestExport:
    @pytest.fixture(name="path")
    def _path(self, tmp_path):
        with logstore.open_store(tmp_path / "data", config=FEW) as store:
            topic = store.create_topic("orders", partitions=2)
            for at in range(40):
                topic[at % 2].append(
                    b'{"id": %d}' % at, key=b"k", timestamp=NEW_YEAR_MS + at % 4 * DAY_MS
                )
        return tmp_path / "data"

    @staticmethod
    def run(spark, path, **options):
        return export(
            spark,
            path,
            "orders",
            path.parent / "lake",
            checkpoint=path.parent / "state",
            **{
                "schema": "id long",
                "mode": "quarantine",
                "quarantine": path.parent / "refused",
                "partition_by": ["day=date(_timestamp)"],
                **options,
            },
        )

    @staticmethod
    def rows(place):
        return pq.read_table(place).to_pylist() if Path(place).exists() else []

    def test_a_topic_into_parquet(self, spark, path):
        """One file for each day and run; what is refused is kept with its place."""
        assert (40, 0, 4) == self.run(spark, path)
        with logstore.open_store(path) as store:
            store["orders", 0].append(b"{", timestamp=NEW_YEAR_MS)
            store["orders", 1].append(b'{"id": 40}', timestamp=NEW_YEAR_MS)
        assert (2, 1, 1) == self.run(spark, path)
        rows = self.rows(path.parent / "lake")
        assert list(range(41)) == sorted(row["id"] for row in rows)
        assert {"2013-01-01", "2013-01-02", "2013-01-03", "2013-01-04"} == {
            str(row["day"]) for row in rows
        }
        assert {"id", "_partition", "_offset", "_timestamp", "_key", "day", "batch"} == rows[
            0
        ].keys()
        (refused,) = self.rows(path.parent / "refused")
        assert ("orders", 0, 20, b"{") == tuple(
            refused[name] for name in ("topic", "partition", "offset", "value")
        )
        with pytest.raises(SparkSourceError, match="another schema"):
            self.run(spark, path, schema="id int")

    def test_more_batches_than_spark_remembers(self, spark, path):
        """The result counts all of them."""
        name = "spark.sql.streaming.numRecentProgressUpdates"
        before = spark.conf.get(name)
        spark.conf.set(name, "1")
        try:
            done = self.run(spark, path, max_offsets=20, partition_by=())
        finally:
            spark.conf.set(name, before)
        assert (40, 0, 2) == done

    def test_a_batch_that_is_repeated(self, spark, path):
        """Spark does not know that it was written: its files are replaced, in whatever number."""
        self.run(spark, path, target_file_bytes=300)
        files = sorted((path.parent / "lake").rglob("*.parquet"))
        assert len(files) > 4
        for name in ("0", ".0.crc"):
            (path.parent / "state/commits" / name).unlink()
        pipeline_id = files[0].parent.name.removeprefix("batch=").removesuffix("-0")
        left = path.parent / f"lake/.{pipeline_id}-0/_temporary/half.parquet"
        left.parent.mkdir(parents=True)
        left.write_bytes(b"PAR1")  # As after a kill.
        self.run(spark, path)
        assert not list((path.parent / "lake").glob(".*"))
        assert 4 == len(list((path.parent / "lake").rglob("*.parquet")))
        assert list(range(40)) == sorted(row["id"] for row in self.rows(path.parent / "lake"))

    def test_what_goes_together(self, spark, path):
        for options, text in (
            ({"quarantine": None}, "go together"),
            ({"schema": None}, "wants a schema"),
            ({"target_file_bytes": 0}, "positive"),
        ):
            with pytest.raises(SparkSourceError, match=text):
                self.run(spark, path, **options)

    def test_a_first_run_that_was_wrong(self, spark, path):
        """Nothing of it stays, and columns are looked for before anything is written."""
        for options in ({"schema": "id lnog"}, {"partition_by": ["nothing"]}):
            with pytest.raises(SparkSourceError, match="INVALID_PIPELINE"):
                self.run(spark, path, **options)
            assert not (path.parent / "state").exists()
        with pytest.raises(Exception, match="MALFORMED"):
            self.run(spark, path, schema="id boolean", mode="fail", quarantine=None)
        assert 40 == self.run(spark, path).row_count

    def test_a_topic_into_a_table(self, spark, path, capsys):
        """By the command: a micro-batch of which a part was written is completed, not repeated."""
        url = f"jdbc:derby:{path.parent / 'database'};create=true"
        command = ["pipeline", "export", str(path), "orders", url, "--table", "orders", "--json"]
        command += ["--schema", "id long", "--checkpoint", str(path.parent / "state")]

        def run():
            assert 0 == main(command)
            return json.loads(capsys.readouterr().out)["row_count"]

        assert 40 == run()
        rows = spark.read.format("jdbc").options(url=url, dbtable="orders").load()
        assert {"_partition", "_offset", "_timestamp", "_key", "_batch", "id"} == set(rows.columns)
        connection = spark._jvm.java.sql.DriverManager.getConnection(url)
        try:  # As after a kill within a commit of a database without transactions.
            connection.createStatement().execute('DELETE FROM orders WHERE "_offset" >= 5')
        finally:
            connection.close()
        for name in ("0", ".0.crc"):
            (path.parent / "state/commits" / name).unlink()
        assert 40 == run()
        assert list(range(40)) == sorted(row.id for row in rows.collect())
        assert 0 == run()
        with pytest.raises(SparkSourceError, match="checkpoint of the table export of orders"):
            self.run(spark, path)

    def test_what_a_destination_has_no_use_for(self, path, capsys):
        command = ["pipeline", "export", str(path), "orders", "--checkpoint", "state"]
        for more, text in (
            (["lake", "--table", "orders"], "leave out --table"),
            (["jdbc:derby:x", "--table", "x", "--partition-by", "id"], "leave out --partition-by"),
            (["jdbc:derby:x"], "say --table"),
        ):
            assert 2 == main([*command, *more])
            assert text in capsys.readouterr().err
