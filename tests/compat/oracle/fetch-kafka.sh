#!/bin/sh
# Fetch Kafka's jars, once, and print the directory they are in.
#
#   fetch-kafka.sh [CACHE_DIR]      default: $KAFKA_ORACLE_CACHE, else ~/.cache/kafka-oracle
#
# Needs Maven for the first run only: when CACHE_DIR/libs is already filled (copy it from another machine, or set
# KAFKA_ORACLE_LIBS to a directory of Kafka's jars) nothing is fetched. 43 MB.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:-${KAFKA_ORACLE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kafka-oracle}}
libs=${KAFKA_ORACLE_LIBS:-$cache/libs}

# A cache from before the broker was among them is filled anew.
if [ -z "${KAFKA_ORACLE_LIBS:-}" ] && ! ls "$libs"/kafka_2.13-*.jar >/dev/null 2>&1; then
    mkdir -p "$cache"
    rm -rf "$libs.tmp"
    mvn -q -B -Dstyle.color=never -f "$here/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$libs.tmp" >&2
    rm -rf "$libs" && mv "$libs.tmp" "$libs"
fi
echo "$libs"
