"""The simulated disk against a model: what was synced survives, and nothing is invented."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from logstore.errors import SimulatedCrashError, StorageError
from logstore.simulated_files import FailingFiles, SimulatedFiles

POSITIONS = st.sampled_from([0, 1, 511, 512, 4000, 4095, 4096, 5000, 8192])
SIZES = st.sampled_from([0, 1, 100, 512, 4096, 4097, 9000])

data_steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), POSITIONS, SIZES),
        st.tuples(st.just("truncate"), st.one_of(POSITIONS, SIZES)),
        st.tuples(st.just("store"), POSITIONS, SIZES),
        st.tuples(st.just("sync")),
    ),
    min_size=1,
    max_size=8,
)


class FileModel:
    """What a file may hold after a power loss."""

    def __init__(self) -> None:
        self.now = bytearray()
        self.sync()

    def sync(self):
        self.durable = bytes(self.now)
        self.smallest = self.largest = len(self.now)
        self.written = set()
        self.cut = set()

    def write(self, position, data):
        end = position + len(data)
        if data and end > len(self.now):
            self.now.extend(bytes(end - len(self.now)))
        self.now[position:end] = data
        self.written.update(range(position, end))
        self.largest = max(self.largest, len(self.now))

    def truncate(self, size):
        self.cut.update(range(size, len(self.durable)))
        if size <= len(self.now):
            del self.now[size:]
        else:
            self.now.extend(bytes(size - len(self.now)))
        self.smallest = min(self.smallest, size)
        self.largest = max(self.largest, size)

    def check(self, left):
        assert self.smallest <= len(left) <= self.largest
        for position, byte in enumerate(left):
            if position in self.written:
                continue  # Anything: old, new, zero or garbage.
            allowed = {self.durable[position] if position < len(self.durable) else 0}
            if position in self.cut:
                allowed.add(0)
            assert byte in allowed, position
        if not self.written and not self.cut and self.smallest == self.largest:
            assert self.durable == left


@settings(max_examples=examples(150))
@given(steps=data_steps, seed=st.integers(0, 2**16))
def test_synced_data_survive_and_nothing_else_changes(steps, seed):
    """Bytes, sizes and mapped stores of one file, any order, against FileModel."""
    directory = tempfile.mkdtemp()
    try:
        path = os.path.join(directory, "a")
        Path(path).touch()
        files = SimulatedFiles(seed)
        fd = files.open(path, os.O_RDWR)
        model = FileModel()
        for number, (step, *arguments) in enumerate(steps):
            fill = bytes([number + 1])
            if step == "write":
                position, size = arguments
                files.pwrite(fd, fill * size, position)
                model.write(position, fill * size)
            elif step == "truncate":
                files.ftruncate(fd, arguments[0])
                model.truncate(arguments[0])
            elif step == "store":
                size = min(arguments[1], len(model.now) - arguments[0])
                if size > 0:
                    mapping = files.map(fd, len(model.now), writable=True)
                    mapping.writable_view[arguments[0] : arguments[0] + size] = fill * size
                    mapping.stored(arguments[0], size)
                    mapping.close()
                    del mapping
                    model.write(arguments[0], fill * size)
            else:
                files.fdatasync(fd)
                model.sync()
            assert bytes(model.now) == files.read_file(path)
        files.close(fd)
        files.crash()
        model.check(Path(path).read_bytes())
    finally:
        shutil.rmtree(directory)


NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "e/a"])
DIRECTORIES = st.sampled_from(["d", "e"])

name_steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("link"), NAMES, NAMES),
        st.tuples(st.just("unlink"), NAMES),
        st.tuples(st.just("mkdir"), DIRECTORIES),
        st.tuples(st.just("rmdir"), DIRECTORIES),
        st.tuples(st.just("rename"), DIRECTORIES, DIRECTORIES),
        st.tuples(st.just("sync"), st.sampled_from([".", "d", "e"])),
    ),
    min_size=1,
    max_size=12,
)


def tree(directory):
    """Names and contents of everything below a directory."""
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        name = os.fspath(path.relative_to(directory))
        found[name] = path.read_text() if path.is_file() else None
    return found


@settings(max_examples=examples(200))
@given(
    steps=name_steps,
    seed=st.integers(0, 2**16),
    crash_at=st.one_of(st.none(), st.integers(1, 12)),
)
def test_entries_are_old_or_new_and_synced_ones_stay(steps, seed, crash_at):
    """
    Any changes of names, synced or not, with a crash at any operation or at the end.

    Each file is written and synced when it is made, and holds its own number: so its contents say
    which file a name has after the crash.
    """
    directory = tempfile.mkdtemp()
    try:
        root = Path(directory)
        (root / "d").mkdir()
        (root / "a").write_text("0")
        (root / "d" / "b").write_text("-1")
        files = SimulatedFiles(seed, crash_at)
        # Every state that a directory was in since its last sync; the crash leaves each name one.
        states = [tree(root)]
        crashed = False
        all_synced = True
        for number, (step, *names) in enumerate(steps, 1):
            paths = [root / name for name in names]
            try:
                if step == "create":
                    fd = files.open(paths[0], os.O_RDWR | os.O_CREAT)
                    if files.size(fd) == 0:
                        files.pwrite(fd, str(number).encode(), 0)
                    files.fdatasync(fd)
                    files.close(fd)
                elif step == "sync":
                    files.fsync_directory(paths[0])
                else:
                    getattr(files, step)(*paths)
            except SimulatedCrashError:
                crashed = True
            except StorageError:
                assert step != "sync" or not paths[0].exists()
            states.append(tree(root))
            if crashed:
                break
        all_synced = files.unsynced_count == 0
        newest = tree(root)
        files.crash()
        left = tree(root)

        if all_synced and not crashed:
            assert newest == left
        ever = {(os.path.basename(name), text) for state in states for name, text in state.items()}
        for name, text in left.items():
            if text == "":  # Made, but the crash came before its data were synced.
                assert crashed
            elif not (crashed and text not in newest.values()):
                assert (os.path.basename(name), text) in ever
        assert not any(".lost-" in name for name in left)
    finally:
        shutil.rmtree(directory)


@settings(max_examples=examples(100))
@given(
    changes=st.lists(st.sampled_from(["rename", "unlink", "create"]), min_size=1, max_size=6),
    synced=st.integers(0, 6),
    seed=st.integers(0, 2**16),
)
def test_synced_changes_stay(changes, synced, seed):
    """What was there at the last sync of the directory is there, or what was done to it later."""
    directory = tempfile.mkdtemp()
    try:
        root = Path(directory)
        for i in range(len(changes)):
            (root / f"old-{i}").write_text(str(i))
        files = SimulatedFiles(seed)
        for i, change in enumerate(changes):
            if i == synced:
                files.fsync_directory(root)
            if change == "rename":
                files.rename(root / f"old-{i}", root / f"new-{i}")
            elif change == "unlink":
                files.unlink(root / f"old-{i}")
            else:
                files.close(files.open(root / f"new-{i}", os.O_RDWR | os.O_CREAT))
        files.crash()
        left = tree(root)
        for i, change in enumerate(changes):
            old = left.get(f"old-{i}") == str(i)
            new = left.get(f"new-{i}") == (str(i) if change == "rename" else "")
            before = {"rename": (True, False), "unlink": (True, False), "create": (True, False)}
            after = {"rename": (False, True), "unlink": (False, False), "create": (True, True)}
            allowed = (
                {after[change]}
                if i < min(synced, len(changes)) < len(changes)
                else {
                    before[change],
                    after[change],
                }
            )
            assert (old, new) in allowed
    finally:
        shutil.rmtree(directory)


@settings(max_examples=examples(100))
@given(
    pieces=st.lists(st.integers(0, 300), max_size=40),
    shorts=st.lists(st.integers(1, 6), max_size=4),
    interrupts=st.lists(st.integers(1, 6), max_size=4),
)
def test_transfers_are_complete_whatever_is_short(pieces, shorts, interrupts):
    """Short and interrupted calls in any pattern change nothing of what is written and read."""
    directory = tempfile.mkdtemp()
    try:
        files = FailingFiles()
        fd = files.open(os.path.join(directory, "a"), os.O_RDWR | os.O_CREAT)
        data = [bytes([i % 251 + 1]) * size for i, size in enumerate(pieces)]
        for operation in ("pwritev", "pwrite", "pread"):
            for at in shorts:
                files.shorten(operation, at=at)
            for at in interrupts:
                files.fail(operation, 4, at=at)
        assert sum(pieces) == files.pwritev(fd, data, 7)
        assert bytes(7) + b"".join(data) == files.pread(fd, 20_000, 0) or not sum(pieces)
        files.close(fd)
    finally:
        shutil.rmtree(directory)
