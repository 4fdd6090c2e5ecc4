#!/bin/sh
# Compile every C source with all warnings as errors, by each compiler there is; nothing is linked or kept.
#
#   scripts/check_c.sh
#
# Then the cffi module as a free-threaded build would see it: without the limited API and with Py_GIL_DISABLED,
# against the headers of the newest Python here (they know that macro from 3.13 on).
set -eu
cd "$(dirname "$0")/.."

native=src/logstore/_native
include=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
checked=0
for compiler in gcc clang; do
    command -v "$compiler" >/dev/null 2>&1 || continue
    echo "logstore: warnings of $("$compiler" --version | sed -n 1p)"
    for source in "$native"/ls_*.c; do
        "$compiler" -fsyntax-only -std=c11 -D_GNU_SOURCE -DPy_LIMITED_API=0x030b0000 -I"$native" -isystem "$include" \
            -O2 -Wall -Wextra -Wshadow -Wconversion -Werror "$source"
    done
    checked=$((checked + 1))
done
[ "$checked" -gt 0 ] || { echo "logstore: neither gcc nor clang is there" >&2; exit 1; }

headers=
for python in .venv/bin/python python3.13 python3.14 python3.15 "$HOME"/.pyenv/versions/3.1[3-9]*/bin/python3; do
    directory=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null) || continue
    grep -qs 'Py_GIL_DISABLED' "$directory/pyconfig.h" && headers=$directory
done
if [ -z "$headers" ]; then
    echo "logstore: no headers of Python 3.13 or later; the free-threaded check is left out"
    exit 0
fi
echo "logstore: free-threaded compile against $(basename "$headers")"
mkdir -p build/free-threaded
.venv/bin/python scripts/write_cffi_source.py build/free-threaded/_core.c
for source in build/free-threaded/_core.c "$native"/ls_*.c; do
    "${CC:-gcc}" -fsyntax-only -std=c11 -D_GNU_SOURCE -DPy_GIL_DISABLED=1 -I"$native" -isystem "$headers" -Wall "$source"
done
