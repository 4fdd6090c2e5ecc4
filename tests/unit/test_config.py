"""Settings: both spellings, strings as values, every problem at once."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest

from logstore import config as config_module
from logstore.config import LogConfig
from logstore.errors import ConfigError


def documented():
    """The rows of the module's table: property, type, default, valid."""
    rows = {}
    for line in config_module.__doc__.splitlines():
        match = re.fullmatch(
            r"    ([a-z4.]+) +(int|long|double|bool|string|list) +(\S+) +(.+)", line
        )
        if match:
            rows[match[1]] = match.groups()[1:]
    return rows


def default_of(name):
    text = LogConfig().to_properties()[name]
    return {"": "(empty)", str(2**63 - 1): "2^63-1"}.get(text, text)


class TestTable:
    def test_table_names_every_field(self):
        """The docstring's table and the fields are the same set, in order."""
        fields = [setting.name.replace("_", ".") for setting in dataclasses.fields(LogConfig)]
        assert sorted(fields) == fields
        assert fields == list(documented())

    @pytest.mark.parametrize("name", list(documented()))
    def test_default_is_as_documented(self, name):
        """Each documented default is the code's."""
        assert documented()[name][1] == default_of(name)

    @pytest.mark.parametrize("name", list(documented()))
    def test_bounds_are_as_documented(self, name):
        """The values at a documented bound are accepted, and those just outside are not."""
        kind, _, valid = documented()[name]
        if kind in ("int", "long"):
            accepted, refused = bounds_of(kind, valid)
            for value in accepted:
                assert value == getattr(LogConfig.of(pair(name, value)), name.replace(".", "_"))
            for value in refused:
                with pytest.raises(ConfigError, match=re.escape(f"{name}={value} must be")):
                    LogConfig.of({name: value})
        elif kind == "double":
            assert 0.0 == LogConfig.of({name: "0"}).min_cleanable_dirty_ratio
            with pytest.raises(ConfigError, match=re.escape(f"{name}=1.5 must be between")):
                LogConfig.of({name: 1.5})
        elif kind == "string":
            for value in valid.rstrip(",").split(", "):
                assert value == LogConfig.of({name: value}).to_properties()[name]
            with pytest.raises(ConfigError, match="must be one of"):
                LogConfig.of({name: "other"})
        elif kind == "bool":
            assert getattr(LogConfig.of({name: "FALSE"}), name.replace(".", "_")) is False
            with pytest.raises(ConfigError, match="must be true or false"):
                LogConfig.of({name: "yes"})


def pair(name, value):
    """A property that may not be alone, with its companion."""
    if name == "max.compaction.lag.ms":
        return {name: value, "min.compaction.lag.ms": 0}
    return {name: value, "max.compaction.lag.ms": 2**63 - 1}


def bounds_of(kind, valid):
    top = 2**31 - 1 if kind == "int" else 2**63 - 1
    if valid == "any":
        return [-top - 1, top], [top + 1, "1_0", 1.5, None]
    if match := re.fullmatch(r">= (-?\d+)", valid):
        low = int(match[1])
        return [low, top], [low - 1, top + 1, "x", 1.5]
    match = re.fullmatch(r"(?:(-?\d+), )?(-?\d+)\.\.(-?\d+)", valid)
    extra, low, high = (None if part is None else int(part) for part in match.groups())
    accepted = [low, high] if extra is None else [low, high, extra]
    return accepted, [low - 1, high + 1]


class TestOf:
    def test_nothing_gives_the_defaults(self):
        """No config is the default config, and our defaults delete nothing."""
        assert LogConfig() == LogConfig.of(None)
        assert (-1, -1) == (LogConfig().retention_ms, LogConfig().retention_bytes)
        assert not LogConfig().compact

    def test_kafka_defaults_differ_in_retention_only(self):
        """Kafka's defaults are available and keep seven days."""
        assert LogConfig(retention_ms=604_800_000) == LogConfig.kafka_defaults()

    def test_ready_config_is_returned_as_it_is(self):
        """A LogConfig passes through unchanged."""
        config = LogConfig(segment_bytes=100)
        assert config is LogConfig.of(config)

    @pytest.mark.parametrize("name", ["segment.bytes", "segment_bytes", "internal.segment.bytes"])
    def test_every_spelling_and_strings(self, name):
        """Kafka's name, Python's, and the name that Kafka's own tests use."""
        assert 14 == LogConfig.of({name: " 14 "}).segment_bytes

    def test_lists(self):
        """Lists come as text with commas, or as any collection of strings."""
        both = frozenset({"compact", "delete"})
        assert both == LogConfig.of({"cleanup.policy": "Compact, delete"}).cleanup_policy
        assert both == LogConfig.of({"cleanup.policy": ["delete", "compact"]}).cleanup_policy
        assert LogConfig.of({"cleanup.policy": "compact"}).compact

    def test_all_problems_at_once(self):
        """One error names each unknown property and each wrong value."""
        with pytest.raises(ConfigError) as caught:
            LogConfig.of({"segment.byte": 1, "retention.ms": "week", "flush.messages": 0, 7: 1})
        assert [
            "segment.byte is not a known property; did you mean segment.bytes?",
            "retention.ms=week must be a whole number",
            "flush.messages=0 must be at least 1",
            "7 is not a property name; use a string",
        ] == caught.value.problems
        assert 40 == caught.value.kafka_error_code

    @pytest.mark.parametrize(
        ("name", "nearest"),
        [
            ("log.segment.bytes", "segment.bytes"),
            ("log.roll.ms", "segment.ms"),
            ("retention_mss", "retention_ms"),
            ("compression", "compression.type"),
            ("cleanup_policies", "cleanup_policy"),
        ],
    )
    def test_unknown_name_names_the_nearest(self, name, nearest):
        """A typo, or a broker's name for it, leads to the property, in the same spelling."""
        with pytest.raises(ConfigError, match=re.escape(f"did you mean {nearest}?")):
            LogConfig.of({name: 1})

    def test_far_name_names_nothing(self):
        """A name that is like no property gets no guess."""
        with pytest.raises(ConfigError, match="xyzzy is not a known property; remove it"):
            LogConfig.of({"xyzzy": 1})

    def test_same_property_twice(self):
        """Two spellings of one property would leave the winner to chance."""
        with pytest.raises(ConfigError, match="are the same property"):
            LogConfig.of({"segment.bytes": 100, "segment_bytes": 100})

    def test_not_a_mapping(self):
        """A list of pairs is refused with what to give."""
        with pytest.raises(ConfigError, match="give a mapping or a LogConfig"):
            LogConfig.of([("segment.bytes", 100)])

    def test_compaction_lags_are_compared(self):
        """The lower bound of the compaction lag must not exceed the upper one."""
        with pytest.raises(ConfigError, match=r"min.compaction.lag.ms=2 must not exceed"):
            LogConfig.of({"min.compaction.lag.ms": 2, "max.compaction.lag.ms": 1})

    def test_tiered_storage_is_refused(self):
        """A setting that we cannot honour is not accepted in silence."""
        with pytest.raises(ConfigError, match="no tiered storage"):
            LogConfig.of({"remote.storage.enable": "true"})

    def test_retired_names(self):
        """Configurations of older brokers are accepted; the old bound sets the new ones."""
        config = LogConfig.of(
            {
                "message.format.version": "2.8",
                "message.timestamp.difference.max.ms": "5",
                "message_timestamp_after_max_ms": 7,
            }
        )
        assert 5 == config.message_timestamp_before_max_ms
        assert 7 == config.message_timestamp_after_max_ms
        with pytest.raises(ConfigError, match=r"difference\.max\.ms=-1 must be at least 0"):
            LogConfig.of({"message.timestamp.difference.max.ms": -1})


class TestConfig:
    def test_constructor_checks_too(self):
        """A LogConfig made directly is as checked as one from a mapping."""
        with pytest.raises(ConfigError) as caught:
            LogConfig(segment_bytes=13, min_insync_replicas=0)
        assert 2 == len(caught.value.problems)

    def test_replace(self):
        """A changed copy; the original stays."""
        config = LogConfig()
        assert 100 == config.replace(segment_bytes="100").segment_bytes
        assert 1 << 30 == config.segment_bytes

    def test_properties_round_trip(self):
        """What to_properties writes, of reads."""
        config = LogConfig.of({"cleanup.policy": "compact,delete", "preallocate": True})
        assert config == LogConfig.of(config.to_properties())

    def test_immutable_hashable_and_pickles(self):
        """A config may be shared between threads and processes."""
        config = LogConfig(segment_bytes=100)
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.segment_bytes = 1
        assert hash(config) == hash(LogConfig(segment_bytes=100))
        assert config == pickle.loads(pickle.dumps(config))

    def test_max_segment_ms(self):
        """Only a compacted log rolls earlier for its compaction lag."""
        lag = {"max.compaction.lag.ms": 5}
        assert 604_800_000 == LogConfig.of(lag).max_segment_ms
        assert 5 == LogConfig.of({**lag, "cleanup.policy": "compact"}).max_segment_ms

    def test_batches_fit_their_segment(self):
        """Small segments and message bounds also bound the batches that extend makes."""
        assert 65536 == LogConfig().batch_bytes_max
        assert 100 == LogConfig(segment_bytes=100).batch_bytes_max
        assert 50 == LogConfig(max_message_bytes=50).batch_bytes_max

    def test_preallocation_grows_with_the_segment(self):
        """None for small segments, then a quarter, up to 16 MiB; none beside Kafka's own."""
        sizes = [(1 << 20) - 1, 1 << 20, 40 << 20, 1 << 30]
        found = [LogConfig(segment_bytes=size).preallocation_bytes for size in sizes]
        assert [0, 1 << 18, 10 << 20, 16 << 20] == found
        assert 0 == LogConfig(preallocate=True).preallocation_bytes
