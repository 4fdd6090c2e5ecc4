#!/bin/sh
# Compile every C source for systems that this machine is not: macOS, 64-bit ARM, musl. Nothing is linked or kept.
#
#   scripts/check_cross.sh [target ...]
#
# The compiler is clang with the headers of those systems, from the package index (100 MB, once, into .cache).
set -eu
cd "$(dirname "$0")/.."

python=$PWD/.venv/bin/python
native=src/logstore/_native
tools=$PWD/.cache/cross
if [ ! -e "$tools/done" ]; then
    echo "logstore: fetch the compiler for other systems (once)"
    rm -rf "$tools"
    "$python" -m uv pip install --quiet --python "$python" --target "$tools" --no-deps \
        --require-hashes -r requirements/cross.txt
    touch "$tools/done"
fi
mkdir -p build/cross
[ $# -gt 0 ] || set -- aarch64-macos x86_64-macos aarch64-linux-gnu aarch64-linux-musl x86_64-linux-musl
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
export ZIG_GLOBAL_CACHE_DIR="$tools/cache" ZIG_LOCAL_CACHE_DIR="$tools/cache" PYTHONPATH="$tools"
for target in "$@"; do
    echo "logstore: warnings for $target"
    for source in "$native"/ls_*.c; do
        "$python" -m ziglang cc -target "$target" -c -o build/cross/object.o -std=c11 -D_GNU_SOURCE \
            -DPy_LIMITED_API=0x030b0000 -I"$native" -isystem "$include" \
            -O1 -Wall -Wextra -Wshadow -Wconversion -Werror "$source"
    done
done
