"""
Where a follower's log and its leader's part ways: the follower removes what only it has.

The follower asks for the end of its latest epoch, and the leader answers with the largest epoch
that it has up to that one, and where it ends there:

====================================  =======================================  ==============
answer: epoch E, end offset O         the follower truncates to                and then
====================================  =======================================  ==============
none                                  its high watermark                       is done
E is nothing that the follower has,   O, at most its log end                   is done
nor anything older
its largest epoch up to E is older    the end of that one, at most its log     asks again
than E                                end
it has E                              the smaller end of E, at most its log    is done
                                      end
====================================  =======================================  ==============

A follower without epochs, whose log is older than they are, truncates to its high watermark. One
whose log ends below the leader's log start begins anew there.

A new leader assigns its epoch before it answers (``assign_epoch_start_offset``): else it would not
know what comes behind the epochs of its records.

Source: Kafka ``AbstractFetcherThread.getOffsetTruncationState``, ``maybeTruncate``; KIP-101,
KIP-279; spec 8.5.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from logstore.leader_epoch import LeaderEpochCache


class Leader(Protocol):
    """What a follower asks of its leader; a :class:`~logstore.log.Log` has it."""

    @property
    def log_start_offset(self) -> int:
        """Where the leader's log begins."""
        ...

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int] | None:
        """Return (epoch, end offset) of the largest epoch <= ``leader_epoch``, None if unknown."""
        ...


class Follower(Protocol):
    """What is truncated; a :class:`~logstore.log.Log` is one."""

    @property
    def leader_epochs(self) -> LeaderEpochCache:
        """The epochs that it has records of."""
        ...

    @property
    def log_end_offset(self) -> int:
        """Where its log ends."""
        ...

    @property
    def high_watermark(self) -> int:
        """Up to where its records are in every replica."""
        ...

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int] | None:
        """Return (epoch, end offset) of the largest epoch <= ``leader_epoch``, None if unknown."""
        ...

    def truncate_to(self, target_offset: int) -> bool:
        """Remove everything from an offset on."""
        ...

    def truncate_fully_and_start_at(
        self, new_offset: int, log_start_offset: int | None = None
    ) -> None:
        """Remove everything, and begin anew."""
        ...


class OffsetTruncationState(NamedTuple):
    """
    One step of a truncation.

    Attributes:
        offset: Where the log is to end.
        is_completed: Nothing is left to ask.

    Source: Kafka ``OffsetTruncationState``.
    """

    offset: int
    is_completed: bool


def offset_truncation_state(
    follower: Follower, answer: tuple[int, int] | None
) -> OffsetTruncationState:
    """Return where a follower has to end by a leader's answer; see the module's table."""
    log_end_offset = follower.log_end_offset
    if answer is None:
        return OffsetTruncationState(min(follower.high_watermark, log_end_offset), True)
    leader_epoch, leader_end_offset = answer
    local = follower.end_offset_for_epoch(leader_epoch)
    if local is None:
        return OffsetTruncationState(min(leader_end_offset, log_end_offset), True)
    local_epoch, local_end_offset = local
    if local_epoch != leader_epoch:
        return OffsetTruncationState(min(local_end_offset, log_end_offset), False)
    return OffsetTruncationState(min(local_end_offset, leader_end_offset, log_end_offset), True)


def truncate_to_divergence(follower: Follower, leader: Leader) -> int:
    """Truncate a follower's log, and return where it ends; see the module's table."""
    if leader.log_start_offset > follower.log_end_offset:
        follower.truncate_fully_and_start_at(leader.log_start_offset)
        return follower.log_end_offset
    while True:
        epoch = follower.leader_epochs.latest_epoch
        answer = None if epoch is None else leader.end_offset_for_epoch(epoch)
        state = offset_truncation_state(follower, answer)
        follower.truncate_to(state.offset)
        if state.is_completed:
            return follower.log_end_offset
        latest = follower.leader_epochs.latest_epoch
        assert latest is None or (epoch is not None and latest < epoch)  # Else it would not end.
