"""TransactionIndex: aborted transactions of a segment, and which of them a fetch needs."""

from __future__ import annotations

import os

import pytest

from logstore.errors import ClosedError, CorruptIndexError
from logstore.transaction_index import AbortedTxn, TransactionIndex

BASE = 100
FIRST = AbortedTxn(1, 101, 120, 115)
SECOND = AbortedTxn(2, 115, 130, 125)
THIRD = AbortedTxn(1, 125, 140, 141)


@pytest.fixture(name="index")
def _index(tmp_path):
    index = TransactionIndex(tmp_path / "00000000000000000100.txnindex", BASE)
    yield index
    index.close()


@pytest.fixture(name="filled")
def _filled(index):
    for txn in (FIRST, SECOND, THIRD):
        index.append(txn)
    return index


def test_no_file_without_entries(index):
    """Reading, truncating, resetting and flushing an index that is not there makes no file."""
    assert [] == index.all_aborted_txns()
    assert ([], False) == index.collect_aborted_txns(0, 1000)
    index.truncate_to(0)
    index.reset()
    index.flush()
    index.sanity_check()
    assert [] == list(index.check())
    assert not index.exists


def test_bytes_are_kafkas(index):
    """Golden G10: one entry of 34 bytes."""
    index.append(AbortedTxn(1234, 101, 120, 115))
    index.flush()
    index.close()
    expected = "000000000000000004d2000000000000006500000000000000780000000000000073"
    with open(index.path, "rb") as file:
        assert expected == file.read().hex()


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound_offset", "expected", "is_complete"),
    [
        (0, 101, [], True),
        (0, 102, [FIRST], True),
        (0, 115, [FIRST], True),
        (0, 116, [FIRST, SECOND], True),
        (121, 126, [SECOND, THIRD], True),
        (131, 141, [THIRD], True),
        (0, 142, [FIRST, SECOND, THIRD], False),
        (141, 200, [], False),
    ],
)
def test_collect(filled, fetch_offset, upper_bound_offset, expected, is_complete):
    """Overlapping transactions are found; an entry's last stable offset ends the search."""
    found = filled.collect_aborted_txns(fetch_offset, upper_bound_offset)
    assert (expected, is_complete) == found


@pytest.mark.parametrize(("offset", "kept"), [(0, 0), (120, 0), (121, 1), (130, 1), (141, 3)])
def test_truncate_to(filled, offset, kept):
    """Entries are cut from the first whose last offset is at or above; appends go on there."""
    filled.truncate_to(offset)
    assert [FIRST, SECOND, THIRD][:kept] == filled.all_aborted_txns()
    filled.append(AbortedTxn(9, 150, 160, 161))
    assert kept + 1 == len(filled.all_aborted_txns())


def test_truncate_after_reopening(filled):
    """An index that was only just opened is cut as well."""
    filled.close()
    again = TransactionIndex(filled.path, BASE)
    again.truncate_to(130)
    again.close()
    assert 34 == os.path.getsize(filled.path)


def test_reset_empties_the_file(filled):
    """After a reset the file has no bytes, and lower offsets may come."""
    filled.reset()
    assert 0 == os.path.getsize(filled.path)
    filled.append(FIRST)
    assert [FIRST] == filled.all_aborted_txns()


def test_a_torn_entry_is_ignored_then_overwritten(filled):
    """Bytes behind the last whole entry do not count, are named by check, and go with an append."""
    filled.close()
    with open(filled.path, "ab") as file:
        file.write(b"\xff" * 20)
    again = TransactionIndex(filled.path, BASE)
    assert [FIRST, SECOND, THIRD] == again.all_aborted_txns()
    assert ["00000000000000000100.txnindex: 20 bytes behind the last whole entry"] == list(
        again.check()
    )
    again.append(AbortedTxn(9, 150, 160, 161))
    assert 4 * 34 == os.path.getsize(filled.path)
    assert [] == list(again.check())
    again.close()


def test_unknown_version(filled):
    """A version that is not known raises, wherever entries are read."""
    filled.close()
    with open(filled.path, "r+b") as file:
        file.seek(34)
        file.write(b"\0\1")
    again = TransactionIndex(filled.path, BASE)
    for read in (again.all_aborted_txns, again.sanity_check, lambda: again.truncate_to(0)):
        with pytest.raises(CorruptIndexError) as caught:
            read()
        assert 34 == caught.value.position
    assert 1 == len(list(again.check()))
    again.close()


def test_sanity_check_and_check_find_wrong_offsets(index):
    """An entry of an earlier segment is corrupt; entries out of order are named."""
    index.append(AbortedTxn(1, 50, 99, 100))
    with pytest.raises(CorruptIndexError):
        index.sanity_check()
    assert 1 == len(list(index.check()))
    index.reset()
    index.append(AbortedTxn(1, 130, 120, 100))
    assert 1 == len(list(index.check()))


def test_rename_delete_close(filled, tmp_path):
    """A renamed index goes on; a deleted one is gone; a closed one refuses."""
    filled.rename(tmp_path / "x.txnindex")
    filled.append(AbortedTxn(9, 150, 160, 161))
    assert 4 * 34 == os.path.getsize(tmp_path / "x.txnindex")
    filled.delete()
    filled.delete()
    assert [] == os.listdir(tmp_path)
    with pytest.raises(ClosedError):
        filled.append(AbortedTxn(9, 170, 180, 181))
    with pytest.raises(ClosedError):
        filled.all_aborted_txns()


def test_rename_of_a_missing_file(index, tmp_path):
    """Only the name changes when there is no file."""
    index.rename(tmp_path / "x.txnindex")
    index.append(FIRST)
    assert os.path.exists(tmp_path / "x.txnindex")


def test_a_released_index_is_still_flushed(filled):
    """The descriptor comes back when it is needed."""
    filled.release()
    filled.flush()
    filled.release()
    filled.append(AbortedTxn(9, 150, 160, 161))
    assert 4 == len(filled.all_aborted_txns())


def test_many_entries_are_read_in_steps(index):
    """A large index is found whole."""
    for number in range(5000):
        index.append(AbortedTxn(number, number, 200 + number, number))
    assert 5000 == len(index.all_aborted_txns())
    found, is_complete = index.collect_aborted_txns(0, 4990)
    assert (4990, True) == (len(found), is_complete)
