"""
The offset map: the last offset of each key in the dirty part of a log, in bounded memory.

24 bytes a key, as in Kafka, so that the same memory holds the same number of keys: ``memory // 24``
slots, of which a share, the load factor, is filled. A full map ends the dirty part of a round; the
next round goes on behind it. Of the 24 bytes 16 are the slot: 88 bits say which key, 40 its offset.
The others note which offsets are superseded, 64 a slot, so that copying what stays of the
dirty part looks no key up, and where batches are, so that those of which nothing stays are not read
twice.

Keys of up to 8 bytes are in the map as they are. Longer ones are compared by their hashes alone:
two keys with one hash would be taken for one, and the older record lost. Kafka's hash is MD5, for
which anybody can make two such keys. Here it is SipHash-2-4 with 128 bits under a secret that is
drawn for each map: who chooses the keys does not know the hashes, and what remains is chance: the
bits that are kept, and those that lead to the slot, give 10^-18 for a round over 10^8 records.
Nothing of the map is ever stored. (docs/decisions/0060.)

Source: Kafka ``SkimpyOffsetMap``; spec 7.2.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from logstore._native import OFFSET_MAP_ENTRY_BYTES, NativeOffsetMap

if TYPE_CHECKING:
    from logstore._native import Buffer

LOAD_FACTOR: Final = 0.9
BYTES_PER_ENTRY: Final = 24  # Kafka's: MD5's 16 bytes and the offset.
assert OFFSET_MAP_ENTRY_BYTES <= BYTES_PER_ENTRY


class OffsetMap(NativeOffsetMap):
    """
    The last offset of each key.

    Memory is given back by the operating system's rules: slots that were never used take none.

    **Thread rule**: one thread at a time.

    Args:
        memory: Bytes of all slots.
        load_factor: The share of the slots that is filled.

    Raises:
        ValueError: There is no room for two keys.

    Source: Kafka ``SkimpyOffsetMap``.
    """

    __slots__ = ()

    def __init__(self, memory: int, load_factor: float = LOAD_FACTOR) -> None:
        slots = memory // BYTES_PER_ENTRY
        if slots * load_factor <= 1:
            raise ValueError(
                f"an offset map of {memory} bytes, {load_factor:.0%} filled, has no room for two"
                f" keys of {BYTES_PER_ENTRY} bytes; give it more"
            )
        if not load_factor <= 1:
            raise ValueError(f"load factor {load_factor} is above 1")
        super().__init__(
            slots,
            int(slots * load_factor),
            os.urandom(16),
            superseded_max=slots * (BYTES_PER_ENTRY - OFFSET_MAP_ENTRY_BYTES) * 8,
        )

    def put(self, key: Buffer, offset: int) -> bool:
        """
        Note the offset of a key's last record.

        Raises:
            ValueError: Every slot is taken, by other keys.
        """
        if not super().put(key, offset):
            raise ValueError(f"the offset map has no slot left for a key, of {self.slots}")
        return True

    @property
    def utilization(self) -> float:
        """The share of the slots that is taken."""
        return self.size / self.slots

    def __len__(self) -> int:
        return self.size
