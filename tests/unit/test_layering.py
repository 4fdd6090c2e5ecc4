"""Imports point strictly downward: the layers of docs/ARCHITECTURE.md, on the syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
SOURCE = Path(__file__).resolve().parents[2] / "src" / "logstore"

# Lowest first. A module imports from rows above its own only, never from its own row.
LAYERS = [
    {"errors"},
    {"cleaner_config", "closing", "config", "clock", "extras", "append_origin", "process_watch"},
    {
        "large_memory",
        "scheduler",
        "metrics",
        "store_config",
        "thread_map",
        "topic_names",
        "throttler",
    },
    {"reporting"},
    {"_native"},
    {"files"},
    {
        "compression",
        "file_views",
        "range_sender",
        "index_file",
        "offset_map",
        "open_files",
        "simulated_files",
        "transaction_index",
    },
    {"protocol_message"},
    {"control_record", "timestamp_type"},
    {"legacy", "records_builder"},
    {"record"},
    {"index", "checkpoint", "live_offsets", "writer_lock"},
    {"coordinator_record"},
    {"group_metadata", "metadata_record", "transaction_log"},
    {"cluster_metadata"},
    {"append_times", "log_directory", "topic_configs"},
    {"file_sharing", "meta_properties"},
    {"point_in_time", "snapshot_manifest"},
    {"cleaned_transactions"},
    {"batch_filter"},
    {"cleaner_stats"},
    {"offset_map_builder"},
    {"append_analysis", "entries", "file_records", "fresh_indexes", "producer_snapshot"},
    {"segment_files"},
    {"given_records", "snapshot_files", "truncations", "watermarks"},
    {"arrow_buffers", "arrow_columns", "flushing", "staged_batches", "waiter"},
    {"encoded_form"},
    {"validator", "leader_epoch", "producer_append", "retention"},
    {"follower_truncation", "producer_state", "unindexed_aborted"},
    {"producer_view"},
    {"producer_batches"},
    {"recovery"},
    {"index_repair"},
    {"segment_reading"},
    {"attached_segment"},
    {"segment"},
    {
        "cleaned_segment",
        "log_flush",
        "producer_rebuild",
        "quarantine",
        "sealed_files",
        "segment_split",
        "segments",
    },
    {"aborted_finder", "damage", "flushed_transactions"},
    {"aborted_transactions"},
    {"leftovers", "local_log", "partition_state", "readable_log"},
    {"segment_walk"},
    {"reader"},
    {"loader"},
    {"record_places"},
    {"arrow_batches", "single_record", "view_loader", "waiting"},
    {"arrow", "follow", "live_segment"},
    {"changing", "live_listing"},
    {"partition"},
    {"live_view", "partition_flush"},
    {"partition_watermarks"},
    {"appending"},
    {"cleanable_log", "finished_batches"},
    {"partition_retention"},
    {"unified_log"},
    {"checking", "extending", "log_to_clean"},
    {"cleaner"},
    {"compaction"},
    {"log"},
    {"forked_log", "log_comparison", "log_copy", "pending_records"},
    {"opening", "partitioner"},
    {"aio", "coordinator_store", "hosted_partition", "store_directories", "topic_extending"},
    {"topic"},
    {"producer_ids", "store_tasks", "transaction_metadata"},
    {"hosting_store", "transaction_coordinator"},
    {"positions", "topic_store"},
    {"config_import", "loading_store", "transactions"},
    {"sink_commits", "transactional_store"},
    {"bootstrap_metadata"},
    {"sink_requests"},
    {"sink_store"},
    {"store_copy", "store_cut"},
    {"snapshot"},
    {"store"},
    {"restoring"},
    {"staged_commit"},
    {"inspection", "kafka_import"},
    {"file_dump", "quarantined_offsets"},
    {"state_verification"},
    {"verification"},
    {"repairing"},
    {""},  # The package itself: public names, no logic.
    {"spark"},
    {"cli", "testing"},
    {"__main__"},
]
LAYER_OF = {module: number for number, layer in enumerate(LAYERS) for module in layer}


def unit_of(path):
    """Return the row entry that a file belongs to: a module, or a subpackage as a whole."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported_units(path):
    """Yield the units of this package that a file imports, wherever in the file it does so."""
    package = ["logstore", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            kept = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*kept, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "logstore":
                known = len(parts) > 1 and parts[1] in LAYER_OF
                yield parts[1] if known else ""


def python_files():
    return sorted(SOURCE.rglob("*.py"))


def test_every_module_has_a_layer():
    """A new module is added to the table, and to the architecture document."""
    assert set() == {unit_of(path) for path in python_files()} - LAYER_OF.keys()


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_strictly_downward(path):
    """A file imports its own subpackage and lower layers only."""
    unit = unit_of(path)
    upward = {
        name
        for name in imported_units(path)
        if name != unit and LAYER_OF.get(name, len(LAYERS)) >= LAYER_OF[unit]
    }
    assert set() == upward


def test_only_native_touches_the_compiled_core():
    """`_core` is imported inside `_native` alone, whose wrappers check what goes in and out."""
    users = {unit_of(path) for path in python_files() if "_core import" in path.read_text("utf-8")}
    assert users <= {"_native"}
