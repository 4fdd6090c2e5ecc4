#!/bin/sh
# The tests. With LOGSTORE_NO_SKIPS=1 a test that is skipped for want of a download or of Java fails the run.
#
#   scripts/test.sh [pytest options]
set -eu
cd "$(dirname "$0")/.."

version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p') || version=
if [ "${version:-0}" -lt 17 ]; then
    echo "logstore: no Java 17 or later; the tests that run Kafka's own classes are skipped" >&2
fi
exec .venv/bin/python -m pytest "$@"
