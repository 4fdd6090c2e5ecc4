"""
The origin of an append: who gives the log its batches, which decides what is checked.

Source: Kafka ``AppendOrigin``; spec 5.2.
"""

from __future__ import annotations

from enum import Enum


class AppendOrigin(Enum):
    """
    Where the batches of an append come from.

    ================  ================  ============================================================
    origin            offsets assigned  checked beyond the format
    ================  ================  ============================================================
    ``CLIENT``        yes               no control batches; counts; duplicates; sequences; bounds
    ``COORDINATOR``   yes               transactions; control batches are allowed
    ``RAFT_LEADER``   no                the batches' leader epoch is the given one
    ``REPLICATION``   no                offsets go up from the log end; fencing is only logged
    ================  ================  ============================================================

    Source: Kafka ``AppendOrigin``.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"
    RAFT_LEADER = "raft_leader"
    REPLICATION = "replication"
