"""
The door as the system sees it (DESIGN.md D11).

What a running program does to the files below its directory is what the door has counted. A child
process runs a scenario under strace and prints the door's counters; the trace is counted by the
same names and both are compared.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest

import logstore

# What the door calls each system call. ``None``: it never makes this one on files.
DOOR_NAMES = {
    "open": "open",
    "openat": "open",
    "openat2": "open",
    "creat": None,
    "pwrite64": "pwrite",
    "pwritev": "pwritev",
    "pwritev2": "pwritev",
    "write": None,
    "writev": None,
    "pread64": "pread",
    "fallocate": "fallocate",
    "ftruncate": "ftruncate",
    "truncate": None,
    "fdatasync": "fdatasync",
    "fsync": "fsync_dir",
    "sync_file_range": "start_writeback",
    "syncfs": None,
    "msync": None,
    "rename": "rename",
    "renameat": "rename",
    "renameat2": "rename",
    "link": "link",
    "linkat": "link",
    "symlink": None,
    "symlinkat": None,
    "unlink": "unlink",
    "unlinkat": "unlink",
    "mkdir": "mkdir",
    "mkdirat": "mkdir",
    "rmdir": "rmdir",
    "copy_file_range": "copy_file_range",
    "sendfile": "sendfile",
    "splice": None,
    "mmap": "map",
    "utimensat": "set_modified",
    "utime": None,
    "utimes": None,
    "futimesat": None,
    "chmod": None,
    "fchmod": None,
    "fchmodat": None,
    "fchmodat2": None,
    "chown": None,
    "fchown": None,
    "lchown": None,
    "fchownat": None,
    "setxattr": None,
    "lsetxattr": None,
    "fsetxattr": None,
    "removexattr": None,
    "lremovexattr": None,
    "fremovexattr": None,
    "mknod": None,
    "mknodat": None,
}

# Counted by the door, but no call on a file of the directory: close has no path once it is
# closed, unmap and stored have none at all.
NOT_COMPARED = {"close", "unmap", "stored"}

CALL = re.compile(r"^\d+ +(\w+)\((.*)$")

COUNTING = """
import json, os, socket, sys
import logstore
from logstore.control_record import ControlRecordType, EndTransactionMarker
from logstore.record import encode_batch, end_transaction_marker
from logstore.files import REAL_FILES as files

directory = sys.argv[1]
files.count_operations()
before = files.operation_counts()
{scenario}
after = files.operation_counts()
print(json.dumps({{name: after[name] - before[name] for name in after}}))
"""

EVERY_OPERATION = """
a, b = directory + "/a", directory + "/b"
fd = files.open(a, os.O_RDWR | os.O_CREAT)
files.fallocate(fd, 0, 1 << 16)
files.pwrite(fd, b"x" * 5000, 0)
files.pwritev(fd, [b"1", b"2"], 5000)
files.pread(fd, 3, 0)
files.copy_range(fd, 0, fd, 8192, 100)
sender, receiver = socket.socketpair()
files.sendfile(sender.fileno(), fd, 0, 100)
files.ftruncate(fd, 4096)
files.start_writeback(fd)
files.fdatasync(fd)
mapping = files.map(fd, 4096, writable=True)
mapping.stored(0, 1)
del mapping
files.close(fd)
files.rename(a, b)
files.link(b, a)
files.unlink(a)
files.mkdir(directory + "/d")
files.fsync_directory(directory)
files.rmdir(directory + "/d")
files.set_modified_ms(b, 1000)
files.replace_file(a, b"y")
files.listdir(directory)
files.read_file(a)
"""

WHOLE_LOG = """
path = directory + "/orders-0"
config = {
    "segment.bytes": 4096,
    "index.interval.bytes": 256,
    "segment.index.bytes": 4096,
    "file.delete.delay.ms": 0,
    "transaction.partition.verification.enable": False,
}


def opened():
    return logstore.open(path, config=config)


def produced(sequence):
    return encode_batch(
        [(None, 0, None, b"v", ())],
        base_offset=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


# Append, one by one and many; flush, roll, read.
with opened() as log:
    for i in range(60):
        log.append(b"value %d" % i * 20, key=b"k")
    log.extend([b"v" * 100] * 60)
    log.append(b"durable", sync=True)
    log.flush()
    assert len(list(log.read())) == 121
    assert log[100].value
    assert len(log.segments) > 3
    sender, receiver = socket.socketpair()
    for offset in (0, 100):
        part = log.fetch(offset, max_bytes=4000)
        assert part.records.size_bytes == part.send_to(sender)
    log.roll()

# A clean start; a transaction that is aborted, another epoch, truncation, retention.
with opened() as log:
    log.append(b"again")
    log.append_batches(produced(0), leader_epoch=1)
    marker = EndTransactionMarker(ControlRecordType.ABORT, 0)
    abort = end_transaction_marker(marker, timestamp=0, producer_id=1, producer_epoch=0)
    log.append_batches(abort, leader_epoch=1, origin="coordinator")
    log.append_batches(produced(1), leader_epoch=2)
    log.roll()
    assert log.truncate_to(70)
    log.extend([b"v" * 100] * 60)
    log.maybe_increment_log_start_offset(40)
    assert log.delete_old_segments() > 0
    assert log.offset_at(0) is not None

# A process that ended without a close, and half a batch behind it: recovery, from nothing.
log = opened()
log.append(b"not flushed")
end = log.log_end_offset
active = log.active_segment.log_path
size = log.active_segment.size_bytes
log.abandon()
fd = files.open(active, os.O_RDWR)
files.pwrite(fd, produced(2)[:50], size)
files.close(fd)
for name in files.listdir(path):
    if name.endswith(("index", ".snapshot", "recovery-point-offset-checkpoint")):
        files.unlink(f"{path}/{name}")
log = opened()
assert log.log_end_offset == end
assert log.active_segment.size_bytes == size
log.append(b"after it")
log.close()

# Everything anew.
with opened() as log:
    log.truncate_fully_and_start_at(1000)
    log.append(b"anew")
    log.rename("renamed-0")
    log.delete()
"""


def run_traced(scenario, directory, trace):
    """Run a scenario in a child under strace; what the door counted there."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    source = os.path.dirname(os.path.dirname(logstore.__file__))
    done = subprocess.run(
        [
            *(strace, "-f", "-y", "-e", "trace=file,desc", "-o", os.fspath(trace)),
            *(sys.executable, "-c", COUNTING.format(scenario=scenario), os.fspath(directory)),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    if "ptrace" in done.stderr and "Operation not permitted" in done.stderr:
        pytest.skip("this system allows no ptrace, which strace needs")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def count_calls(trace, directory):
    """Calls of the trace that reach below the directory, by the door's names."""
    below = os.path.realpath(directory)
    mentions = re.compile(f'["<]{re.escape(below)}(/[^">]*)?( \\(deleted\\))?[">]')
    counts = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        called = CALL.match(line)
        if called is None or not mentions.search(line):
            continue  # The end of an interrupted line, a signal, an exit, another file.
        name, arguments = called.groups()
        if name not in DOOR_NAMES or is_harmless(name, arguments):
            continue
        counts[DOOR_NAMES[name] or f"{name}, which the door never makes"] += 1
    return counts


def is_harmless(name, arguments):
    """Whether a call is none of the door's: listing a directory, private memory."""
    if name in {"open", "openat", "openat2"}:
        return "O_DIRECTORY" in arguments
    if name == "mmap":
        return "MAP_SHARED" not in arguments
    return False


def differences(scenario, tmp_path):
    """(counted by the door, found in the trace) of each operation where they differ."""
    directory = tmp_path / "below"
    directory.mkdir()
    counted = run_traced(scenario, directory, tmp_path / "trace")
    found = count_calls(tmp_path / "trace", directory)
    names = (set(counted) | set(found)) - NOT_COMPARED
    assert sum(found.values()) > 0
    return {
        name: (counted.get(name, 0), found[name])
        for name in sorted(names)
        if counted.get(name, 0) != found[name]
    }


@pytest.mark.linux
def test_every_operation_of_the_door_is_counted(tmp_path):
    """Each operation is one system call, and one count."""
    assert {} == differences(EVERY_OPERATION, tmp_path)


@pytest.mark.parametrize(
    ("detour", "name"),
    [
        ("open(directory + '/x', 'wb').write(b'x')", "write, which the door never makes"),
        ("os.open(directory + '/x', os.O_RDWR | os.O_CREAT)", "open"),
        ("os.mkdir(directory + '/x')", "mkdir"),
        ("os.rename(directory, directory)", "rename"),
        ("os.utime(directory)", "set_modified"),
        ("os.chmod(directory, 0o700)", "chmod, which the door never makes"),
    ],
)
def test_detours_are_found(tmp_path, detour, name):
    """Without this the comparison might compare nothing with nothing."""
    assert name in differences(detour, tmp_path)


def test_a_log_uses_the_door_for_everything(tmp_path):
    """Open, append, roll, flush, read, truncate, recover, delete and close."""
    assert {} == differences(WHOLE_LOG, tmp_path)


def test_every_name_is_known():
    """The table names operations that the door has."""
    from logstore.files import REAL_FILES

    names = set(REAL_FILES.operation_counts())
    assert {name for name in DOOR_NAMES.values() if name} | NOT_COMPARED == names
