"""
Look for what must not be committed: paths of one machine, hosts of registries, large files.

    python scripts/check_repository.py

Prints one line for each finding and exits 1 if there is any. ``tests/unit/test_repository.py`` runs
the same rules.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_BYTES_MAX = 512 << 10
MODULE_LINES_MAX = 700  # The rule is about 600.
# Longer ones, and why they are not split.
JUSTIFIED: dict[str, str] = {}
C_LINES_MAX = 450  # The rule is about 400.
DATA = ("tests/compat/",)  # What Kafka wrote: may be large, and says what it says.
GENERATED = ("requirements/", "LICENSE", "src/logstore/_native/ls_crc32c_table.h")

# A letter in brackets keeps this file from finding itself.
RULES = {
    "path of one machine": re.compile(r"(?<![\w.~}])/(?:hom[e]|roo[t]|wor[k]|User[s]|tm[p])/\w"),
    "host of a registry": re.compile(
        r"(?:pyp[i]|pythonhoste[d]|crate[s]|npmj[s]|debi[a]n)\.(?:org|io)\b|\bmave[n]\.(?:org|apache)"
    ),
    "another project's name on the index": re.compile(
        r"pip3? install (?:-\S+ )*['\"]?logstor[e]\b(?!-)"
    ),
    "loose end": re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b"),
}


def tracked_files() -> list[Path]:
    """Return every file that git tracks, relative to the root."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str | None:
    """Return the file's text, or None for binary data."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def findings(path: Path) -> Iterator[str]:
    """Yield one line for each rule that the file breaks."""
    name = path.as_posix()
    if name.startswith(DATA) and path.suffix not in {".py", ".md", ".sh", ".java", ".xml"}:
        return
    size_bytes = (ROOT / path).stat().st_size
    if size_bytes > FILE_BYTES_MAX:
        yield f"{name}: {size_bytes} bytes; the limit is {FILE_BYTES_MAX}"
    text = text_of(path)
    if text is None or name.startswith(GENERATED):
        return
    lines = text.splitlines()
    limits = {".py": MODULE_LINES_MAX, ".c": C_LINES_MAX}
    line_count_max = None if name in JUSTIFIED else limits.get(path.suffix)
    if line_count_max is not None and name.startswith("src/") and len(lines) > line_count_max:
        yield f"{name}: {len(lines)} lines; split what has more than {line_count_max}"
    for number, line in enumerate(lines, start=1):
        for what, pattern in RULES.items():
            if pattern.search(line):
                yield f"{name}:{number}: {what}: {line.strip()[:100]}"


def repeated_numbers() -> list[str]:
    """Return a line for each decision whose number another one has, too."""
    seen: dict[str, str] = {}
    found = []
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        number = path.name[:4]
        if number in seen:
            found.append(f"docs/decisions/{path.name}: {seen[number]} has its number, too")
        seen[number] = path.name
    return found


def main() -> int:
    """Print all findings."""
    found = [line for path in tracked_files() for line in findings(path)]
    found += repeated_numbers()
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
