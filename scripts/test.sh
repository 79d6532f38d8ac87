#!/usr/bin/env bash
# Sets up if need be, then runs the tests: every promise once, on the real engine, learner, sandbox and Ray.
#   bash scripts/test.sh                 the default
#   bash scripts/test.sh --fast          no engine, learner, compiler or ../shared: what one runs while working
#   bash scripts/test.sh --wide          and all further combinations
#   bash scripts/test.sh --changed REV   of these only those of packages changed since REV, within --budget seconds
#   bash scripts/test.sh --record        and keep the seconds of each file, by which the longest ones start first
#   bash scripts/test.sh -k resume       words after it go to pytest (-n 0: in this process, as a debugger wants it)
# On a machine with a GPU they run on the CPU, in an environment of their own: .venv-cpu. GPUs: scripts/gpu/check.sh.
# Test files run beside each other, one to a core, at most four: an engine and a learner take a few GB.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -z "${OVERLAP_DEVICE:-}" ] && [ "$(bash scripts/setup.sh --device)" = cuda ]; then
  export OVERLAP_DEVICE=cpu OVERLAP_VENV=${OVERLAP_VENV:-.venv-cpu}
fi
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
beside=(-n logical --maxprocesses=4 --dist loadfile --no-loadscope-reorder)
PATH=$bin:$PATH exec "$bin/python" -m pytest "${beside[@]}" --durations=20 --durations-min=1 "$@"
