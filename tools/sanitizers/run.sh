#!/usr/bin/env bash
# Runs the C++ tests of a sanitizer build: tools/sanitizers/run.sh BUILD_DIR. The sanitizers are read
# from the build. torch and its OpenMP are not instrumented: address,undefined runs everything,
# thread runs the torch-free tests and those of the communication core.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${1:?usage: tools/sanitizers/run.sh BUILD_DIR}
kind=$(sed -n 's/^SW_SANITIZE:STRING=//p' "$build/CMakeCache.txt")
[ -n "$kind" ] || { echo "$build is not a sanitizer build" >&2; exit 2; }

# torch keeps its registries to the end, which the leak check would count.
export ASAN_OPTIONS="detect_leaks=0:strict_init_order=1:detect_stack_use_after_return=1"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export TSAN_OPTIONS="suppressions=$here/thread.supp:halt_on_error=1:second_deadlock_stack=1"
export OMP_NUM_THREADS=1

programs="torch_free_tests comm_tests torch_tests"
# Exhaustive tests do the work of the Garbage tests thirty times over, for hours of a sanitizer; tests
# of garbage have one thread, and a time limit means nothing under the thread sanitizer.
left_out='Exhaustive.*'
if [ "$kind" = thread ]; then
  programs="torch_free_tests comm_tests"
  # What Gloo locks is not seen, and what it frees looks like a race.
  left_out="$left_out:*Garbage.*:*Fuzz.*:*Gloo*"
  left_out="$left_out:*.AVocabularyOfAQuarterMillionIsQuick:*.LongWordsTakeNearLinearTime"
fi
status=0
for program in $programs; do
  [ -x "$build/$program" ] || { echo "$build/$program is not built" >&2; status=1; continue; }
  # Address space randomisation beyond 28 bits breaks the thread sanitizer of older compilers.
  timeout 3600 setarch -R "$build/$program" "--gtest_filter=-$left_out" || status=1
done
exit $status
