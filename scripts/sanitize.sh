#!/bin/sh
# Unit and property tests with the C core under AddressSanitizer and UndefinedBehaviorSanitizer, C assertions on; a
# smaller sample than usual where tests draw one, for everything takes three times as long.
#
#   scripts/sanitize.sh [--build-only | pytest options or paths]
#
# With LOGSTORE_PORTABLE=1 the core has no instruction beyond the baseline and no system call beyond POSIX, as on
# systems other than Linux. The instrumented core is built beside the normal one, into build/sanitize or build/portable,
# when a source changed. Needs gcc's sanitizer libraries. Leaks are not looked for: CPython keeps memory until it ends.
# Too large an allocation fails, as it does without sanitizers: a test asks for one.
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

place=build/sanitize
marks="not repository"
paths="tests/unit tests/property tests/fuzz"
if [ "${LOGSTORE_PORTABLE:-0}" = 1 ]; then
    place=build/portable
    marks="not repository and not linux"
    paths="tests/unit/test_*files.py tests/unit/test_kernels_*.py tests/unit/test_opening.py"
    paths="$paths tests/unit/test_partition_state.py tests/property/test_simulated_files.py"
fi
mkdir -p build
python=$PWD/.venv/bin/python
env CC="$compiler" LOGSTORE_SANITIZE=1 "$python" setup.py --quiet build --build-base "$place" \
    --build-lib "$place/lib" >"$place.out" 2>&1 || { cat "$place.out" >&2; exit 1; }
[ "${1:-}" != --build-only ] || exit 0

processes="-n auto --dist loadfile"
# Commands and pages start programs of their own, over what other tests go through in one process.
left_out="--ignore-glob=*/unit/test_cli_*.py --ignore-glob=*/unit/test_docs*.py --ignore-glob=*/unit/test_readme.py"
case " $*" in
*" tests/"*) paths= processes= left_out= ;;
esac
# Word splitting is wanted: paths without spaces, relative to the checkout.
# shellcheck disable=SC2086
exec env LOGSTORE_HYPOTHESIS="${LOGSTORE_HYPOTHESIS:-small}" PYTHONPATH="$PWD/$place/lib" PYTHONMALLOC=malloc \
    LD_PRELOAD="$asan $ubsan" ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
    "$python" -m pytest -q -p no:cacheprovider -m "$marks" $processes $left_out $paths "$@"
