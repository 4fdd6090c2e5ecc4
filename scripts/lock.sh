#!/bin/sh
# Renew the lock: the newest versions that the ranges allow, for every platform and Python 3.11 and later, with hashes.
#
#   scripts/lock.sh [uv options, such as --upgrade-package numpy]
#
# Without options all versions are renewed; that of the compiler for other systems too.
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- --upgrade
.venv/bin/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
    --extra arrow --extra cli --extra metrics --extra test --extra dev \
    --output-file requirements/lock.txt "$@" pyproject.toml
# A Spark, beside what the lock has: half a gigabyte that the wheel's tests on each Python do without.
.venv/bin/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header --constraint requirements/lock.txt \
    --extra spark-local --extra formats --extra demo --extra spark-test --output-file requirements/spark.txt "$@" pyproject.toml
echo ziglang | .venv/bin/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
    --output-file requirements/cross.txt "$@" - >/dev/null
