#!/bin/sh
# Make .venv ready: find a Python, then let environment.py do what is not done yet.
#
#   scripts/setup.sh [--chosen] PYTHON
#
# --chosen  the caller asked for this Python: a .venv made with another one is made anew.
set -eu

chosen=
if [ "$1" = --chosen ]; then
    chosen=--chosen
    shift
fi
python=$1

fail() {
    echo "logstore: $*" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "no '$python' here; install Python 3.11 or later, or choose one with: make PYTHON=python3.12"
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1) ||
    fail "'$python' does not run ($(echo "$found" | sed -n 1p)); choose another with: make PYTHON=python3.12"
case $found in
2.* | 3.[0-9] | 3.10)
    fail "Python 3.11 or later is needed, '$python' is $found; choose another with: make PYTHON=python3.12"
    ;;
esac

exec "$python" "$(dirname "$0")/environment.py" $chosen
