#!/bin/sh
# Unit and property tests with the C core under AddressSanitizer and UndefinedBehaviorSanitizer, C assertions on.
#
#   scripts/sanitize.sh [pytest options or paths]
#
# The instrumented core is built beside the normal one, into build/sanitize, when a source changed. Needs gcc's
# sanitizer libraries. Leaks are not looked for: CPython keeps memory until the process ends.
set -eu
cd "$(dirname "$0")/.."

compiler=${CC:-gcc}
asan=$("$compiler" -print-file-name=libasan.so)
ubsan=$("$compiler" -print-file-name=libubsan.so)
for library in "$asan" "$ubsan"; do
    case $library in
    /*) ;;
    *)
        echo "logstore: '$compiler' has no $library; the sanitizers need gcc with its runtime libraries" >&2
        exit 1
        ;;
    esac
done

mkdir -p build
python=$PWD/.venv/bin/python
env CC="$compiler" LOGSTORE_SANITIZE=1 "$python" setup.py --quiet build --build-base build/sanitize \
    --build-lib build/sanitize/lib >build/sanitize.out 2>&1 || { cat build/sanitize.out >&2; exit 1; }

paths=
case " $*" in
*" tests/"*) ;;
*)
    for path in tests/unit tests/property tests/fuzz; do
        [ ! -e "$path" ] || paths="$paths $path"
    done
    ;;
esac
# Word splitting is wanted: paths without spaces, relative to the checkout.
# shellcheck disable=SC2086
exec env PYTHONPATH="$PWD/build/sanitize/lib" LD_PRELOAD="$asan $ubsan" PYTHONMALLOC=malloc \
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
    "$python" -m pytest -q -p no:cacheprovider -m "not repository" $paths "$@"
