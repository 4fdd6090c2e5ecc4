"""Settings of a store, and of its topics over them."""

from __future__ import annotations

import json
import re

import pytest

from logstore import store_config
from logstore.config import LogConfig
from logstore.errors import ConfigError
from logstore.store_config import TOPIC_PROPERTIES, StoreConfig
from logstore.topic_configs import TOPICS_FILE, TopicConfigs, TopicEntry


class TestStoreConfig:
    def test_table(self):
        """The docstring's table is what the code does."""
        rows = re.findall(r"^    ([a-z.]+)  +(\w+) +(\S+) +\S", store_config.__doc__, re.MULTILINE)
        said = {name: default for name, _, default in rows if name != "property"}
        properties = StoreConfig().to_properties()
        own = {
            name: properties.get(name)
            for name in (field.replace("_", ".") for field in StoreConfig.__dataclass_fields__)
            if name != "topic.defaults"
        }
        assert own.keys() == said.keys()
        for name, default in said.items():
            if default == "(drawn)":
                assert own[name] is None
            elif "e+" in default:
                assert float(own[name]) == pytest.approx(float(default))
            else:
                assert default == own[name]

    def test_brokers_and_topics_names(self):
        """Both are understood, with the units that brokers have."""
        config = StoreConfig.of(
            {
                "log.segment.bytes": "1000",
                "log.retention.hours": 2,
                "log.roll.hours": "3",
                "message.max.bytes": 5000,
                "flush.messages": 7,
                "num_partitions": "4",
                "log.cleaner.threads": 2,
            }
        )
        topic = config.topic_defaults
        assert (1000, 7_200_000, 10_800_000, 5000, 7) == (
            topic.segment_bytes,
            topic.retention_ms,
            topic.segment_ms,
            topic.max_message_bytes,
            topic.flush_messages,
        )
        assert (4, 2) == (config.num_partitions, config.log_cleaner_threads)

    def test_the_finest_unit_wins(self):
        """As in a broker: ms, minutes, hours."""
        given = {"log.retention.hours": 1, "log.retention.minutes": 5}
        assert 300_000 == StoreConfig.of(given).topic_defaults.retention_ms
        given["log.retention.ms"] = 9
        assert 9 == StoreConfig.of(given).topic_defaults.retention_ms
        assert -1 == StoreConfig.of({"log.retention.hours": -5}).topic_defaults.retention_ms

    def test_other_forms(self):
        """Nothing, a LogConfig, a ready one; properties of one make it again."""
        assert -1 == StoreConfig.of(None).topic_defaults.retention_ms
        assert 5 == StoreConfig.of(LogConfig(retention_ms=5)).topic_defaults.retention_ms
        config = StoreConfig.of({"retention.ms": 5, "node.id": 3})
        assert config is StoreConfig.of(config)
        assert config == StoreConfig.of(config.to_properties())

    def test_every_problem(self):
        """Of the store's own settings and of the topics'."""
        with pytest.raises(ConfigError) as caught:
            StoreConfig.of(
                {
                    "num.partitions": 0,
                    "log.segment.bytes": 1,
                    "log.retention.hours": "x",
                    "segment.ms": 1,
                    "log.roll.ms": 2,
                    "nonsense": 1,
                    3: 4,
                }
            )
        assert 6 == len(caught.value.problems), caught.value.problems
        with pytest.raises(ConfigError, match="give a mapping"):
            StoreConfig.of([("a", 1)])

    def test_names_lead_to_properties(self):
        """Each broker's name is of a property that there is."""
        assert set(TOPIC_PROPERTIES.values()) <= LogConfig().to_properties().keys()


class TestTopicConfigs:
    def configs(self, **defaults):
        return TopicConfigs(LogConfig(**defaults))

    def test_the_latest_counts(self, tmp_path):
        """Of several directories: one was not there when the last change was made."""
        for name in "ab":
            (tmp_path / name).mkdir()
        paths = [str(tmp_path / name) for name in "ab"]
        configs = self.configs()
        configs.put("t", TopicEntry("id", (0, 1), {"retention.ms": "1"}))
        assert {} == configs.write(paths)
        configs.put("t", TopicEntry("id", (0, 1), {"retention.ms": "2"}))
        configs.write(paths[1:])
        configs = self.configs()
        assert {} == configs.load(paths)
        assert TopicEntry("id", (0, 1), {"retention.ms": "2"}) == configs.get("t")
        assert 2 == configs.config_of("t").retention_ms

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            '{"version":1,"generation":1,"topics":{}}',
            '{"version":0,"generation":1,"topics":{"t":{}}}',
            '{"version":0,"generation":1,"topics":{"t":{"partitions":[-1],"config":{}}}}',
            '{"version":0,"generation":1,"topics":{"t":{"partitions":[0],"config":3}}}',
        ],
    )
    def test_malformed(self, tmp_path, text, caplog):
        """It is taken for empty: then every topic is held, and nothing is deleted."""
        (tmp_path / TOPICS_FILE).write_text(text)
        configs = self.configs(retention_ms=5)
        configs.load([str(tmp_path)])
        assert configs.get("t") is None
        assert configs.is_held("t")
        assert -1 == configs.config_of("t").retention_ms
        assert "taken for empty" in caplog.text

    def test_a_wrong_setting_in_the_file(self, tmp_path):
        """Of a later version, say: it is left out and told; the topic is held."""
        entry = {"partitions": [0], "config": {"retention.ms": "5", "no.such": "1"}}
        content = {"version": 0, "generation": 1, "topics": {"t": entry}}
        (tmp_path / TOPICS_FILE).write_text(json.dumps(content))
        configs = self.configs()
        configs.load([str(tmp_path)])
        assert configs.is_held("t")
        assert -1 == configs.config_of("t").retention_ms
        assert {"retention.ms": "5", "no.such": "1"} == configs.get("t").config
        with pytest.raises(ConfigError, match=r"no\.such"):
            configs.changed("t", {"retention.ms": 6})
        configs.put("t", configs.changed("t", {"retention.ms": 6, "no.such": None}))
        assert (False, 6) == (configs.is_held("t"), configs.config_of("t").retention_ms)

    def test_retired_names(self):
        """They are accepted: one sets the two that replaced it, the others do nothing."""
        config = self.configs().checked(
            {"message.timestamp.difference.max.ms": 7, "message.format.version": "3.0"}
        )
        assert {
            "message.timestamp.before.max.ms": "7",
            "message.timestamp.after.max.ms": "7",
        } == config
