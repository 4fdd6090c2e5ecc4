#!/bin/sh
# Fetch the jars of Spark's Kafka connector, once, and print the directory they are in.
#
#   fetch-spark-connector.sh CACHE_DIR
#
# Needs Maven for the first run only: nothing is fetched when CACHE_DIR/spark-connector is there. 10 MB.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
jars=$1/spark-connector

if [ ! -d "$jars" ]; then
    rm -rf "$jars.tmp"
    mkdir -p "$1"
    mvn -q -B -Dstyle.color=never -f "$here/spark-connector.xml" dependency:copy -DoutputDirectory="$jars.tmp" >&2
    mv "$jars.tmp" "$jars"
fi
echo "$jars"
