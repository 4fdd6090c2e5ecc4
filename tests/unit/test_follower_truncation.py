"""A follower removes what its leader does not have, and nothing else."""

from __future__ import annotations

import random

import pytest

from logstore.records_builder import encode_batch
from logstore.testing import open_log


@pytest.fixture(name="logs")
def _logs(tmp_path):
    """Logs by name, made when they are asked for, and checked at the end."""
    made = {}

    def get(name, **options):
        if name not in made:
            made[name] = open_log(tmp_path / name, **options)
        return made[name]

    yield get
    for log in made.values():
        assert [] == list(log.check())
        log.close()


def batch(offset, value, epoch):
    return encode_batch([(offset, 1_700_000_000_000, None, value, ())], leader_epoch=epoch)


def fill(log, *epochs):
    """Append a record for each epoch given, with a value that tells epoch and offset."""
    for epoch in epochs:
        offset = log.log_end_offset
        value = b"%d@%d" % (offset, epoch)
        log.append_batches(batch(offset, value, epoch), leader_epoch=epoch, origin="replication")


def contents(log):
    return [(record.offset, record.value) for record in log.read("earliest", isolation="log_end")]


@pytest.mark.parametrize(
    ("leader", "follower", "expected"),
    [
        ([0, 0, 0], [0, 0, 0], 3),  # Nothing to do.
        ([0, 0, 0], [0, 0], 2),  # The follower is behind.
        ([0, 0], [0, 0, 0], 2),  # It has more of the same epoch.
        ([0, 0, 2], [0, 0, 1, 1], 2),  # An epoch that the leader never had.
        ([0, 0, 0, 3], [0, 1, 2, 2], 1),  # Several: it takes more than one question.
        ([0, 1, 1, 4], [0, 1, 2, 3, 3], 2),
        ([1, 1], [0, 0], 0),  # Nothing in common.
        ([], [0], 1),  # A leader without epochs tells nothing: the high watermark stays.
    ],
)
def test_histories(logs, leader, follower, expected):
    """By the epochs of the records of both."""
    fill(logs("leader"), *leader)
    fill(logs("follower"), *follower)
    assert expected == logs("follower").truncate_to_divergence(logs("leader"))
    assert expected == logs("follower").log_end_offset
    if leader:
        assert contents(logs("follower")) == contents(logs("leader"))[:expected]


def test_without_epochs(logs):
    """It truncates to the high watermark."""
    follower = logs("follower", high_watermark="replicas")
    follower.append(b"1")
    follower.append(b"2")
    follower.update_high_watermark(1)
    follower.leader_epochs.clear_and_flush()
    fill(logs("leader"), 5)
    assert 1 == follower.truncate_to_divergence(logs("leader"))


def test_below_the_leaders_start(logs):
    """It begins anew where the leader does."""
    fill(logs("leader"), 0, 0, 0, 0)
    logs("leader").maybe_increment_log_start_offset(3)
    fill(logs("follower"), 0)
    assert 3 == logs("follower").truncate_to_divergence(logs("leader"))
    assert (3, 3) == (logs("follower").log_start_offset, logs("follower").log_end_offset)


@pytest.mark.parametrize("seed", range(6))
def test_replicas_that_lose_their_leaders(logs, seed):
    """After any number of elections, clean or not, every follower is a prefix of the leader."""
    draw = random.Random(seed)
    names = ["a", "b", "c"]
    for epoch in range(8):
        leader = logs(draw.choice(names))
        leader.assign_epoch_start_offset(epoch, leader.log_end_offset)
        for name in names:
            follower = logs(name)
            if follower is not leader and draw.random() < 0.7:
                follower.truncate_to_divergence(leader)
                assert contents(leader)[: follower.log_end_offset] == contents(follower)
        fill(leader, *[epoch] * draw.randint(0, 3))
        for name in names:
            follower = logs(name)
            if follower is not leader and draw.random() < 0.7:
                follower.truncate_to_divergence(leader)
                missing = contents(leader)[follower.log_end_offset :]
                for offset, value in missing[: draw.randint(0, 4)]:
                    told = int(value.partition(b"@")[2])
                    follower.append_batches(
                        batch(offset, value, told), leader_epoch=epoch, origin="replication"
                    )
    for name in names:
        logs(name).truncate_to_divergence(leader)
        assert contents(leader)[: logs(name).log_end_offset] == contents(logs(name))
