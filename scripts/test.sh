#!/usr/bin/env bash
# Sets up if need be, then runs the tests: units first, then the ones marked e2e. Prints where the time went.
#   bash scripts/test.sh             all of them
#   bash scripts/test.sh --wide      and further combinations of stages, ranks and number types (a quarter of an hour)
#   bash scripts/test.sh --fast      no engine, learner, compiler or ../shared: what one runs while working
#   bash scripts/test.sh -k resume   words after it go to pytest (-n 0: in this process, as a debugger wants it)
# Test files run beside each other, one to a core, at most four: an engine and a learner take a few GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
beside=(-n logical --maxprocesses=4 --dist loadfile --no-loadscope-reorder)
PATH=$bin:$PATH exec "$bin/python" -m pytest "${beside[@]}" --durations=20 --durations-min=1 "$@"
