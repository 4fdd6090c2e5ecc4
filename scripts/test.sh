#!/bin/sh
# The tests, side by side on all cores; those that options or paths choose, one after the other.
#
#   scripts/test.sh [pytest options]
#
# What they compare with Kafka's own classes needs a JDK 17, and Kafka's jars, which Maven fetches once into .cache;
# without them these tests are skipped and say so. With LOGSTORE_NO_SKIPS=1 such a skip fails the run.
set -eu
cd "$(dirname "$0")/.."

export KAFKA_ORACLE_CACHE="${KAFKA_ORACLE_CACHE:-$PWD/.cache/kafka-oracle}"
note() {
    echo "logstore: $*; the tests that run Kafka's own classes are skipped" >&2
}

version=$(javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p') || version=
if [ "${version:-0}" -lt 17 ]; then
    note "no JDK 17 or later"
elif [ ! -d "$KAFKA_ORACLE_CACHE/libs" ] && ! command -v mvn >/dev/null 2>&1; then
    note "Kafka's jars are not in $KAFKA_ORACLE_CACHE, and there is no Maven to fetch them"
else
    # Before the tests begin: two of them must not compile it at the same time.
    [ -d "$KAFKA_ORACLE_CACHE/libs" ] || echo "logstore: fetch Kafka's jars (once)"
    sh tests/compat/oracle/make-oracle.sh "$KAFKA_ORACLE_CACHE" >/dev/null || note "Kafka's jars cannot be fetched"
fi
# Files in their order: those that wait for clusters and brokers come before the many of the unit tests, and what xdist does
# itself, the files with the most tests first, leaves one core to wait for them at the end.
[ $# -gt 0 ] || set -- -n auto --dist loadfile --no-loadscope-reorder
exec .venv/bin/python -m pytest "$@"
