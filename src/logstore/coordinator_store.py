"""
What the coordinators of transactions and groups ask of a store and its topics.

Source: Kafka ``ReplicaManager``, as its coordinators use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, overload

if TYPE_CHECKING:
    from logstore._native import Buffer
    from logstore.clock import Clock
    from logstore.given_records import GivenRecords, Headers
    from logstore.log import Log
    from logstore.partitioner import SpreadRecords
    from logstore.scheduler import Scheduler


class CoordinatorTopic(Protocol):
    """What coordinators ask of a topic; :class:`~logstore.topic.Topic` has it."""

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        ...

    def choose_partition(
        self, key: Buffer | None, value: Buffer | None = None, headers: Headers = ()
    ) -> int:
        """Return the partition that a record goes to."""
        ...

    def spread(self, given: GivenRecords) -> SpreadRecords[GivenRecords]:
        """Return records with the partition of each."""
        ...


class CoordinatorStore(Protocol):
    """What coordinators ask of a store; :class:`~logstore.store.LogStore` has it."""

    @property
    def clock(self) -> Clock:
        """What time it is."""
        ...

    @property
    def scheduler(self) -> Scheduler:
        """Runs background work."""
        ...

    def __contains__(self, topic: object, /) -> bool:
        """Whether there is a topic of this name."""
        ...

    @overload
    def __getitem__(self, key: str, /) -> CoordinatorTopic: ...
    @overload
    def __getitem__(self, key: tuple[str, int], /) -> Log: ...
    def __getitem__(self, key: str | tuple[str, int], /) -> CoordinatorTopic | Log:
        """Return a topic, or the log of a partition."""
        ...

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> object:
        """Make a topic; durable on return."""
        ...

    def report(self, error: BaseException, what: str) -> None:
        """Tell of a failure in background work."""
        ...
