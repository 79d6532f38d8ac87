#!/usr/bin/env bash
# How good is a policy? Sets up if need be, then draws answers, judges them by all tests, and prints pass@k.
#   bash scripts/eval_deepcoder.sh                                    the default policy on the shipped held-out problems
#   bash scripts/eval_deepcoder.sh runs/NAME                          what a run has learned, asked as it was trained
#   bash scripts/eval_deepcoder.sh POLICY --set livecodebench --from 2024-08-01 --to 2025-02-01
# --help tells the rest. Stopped, the same command goes on where it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case " $* " in
  *" --help "* | *" -h "*) # without a set-up only what stands above: help should not install anything
    [ -x "${OVERLAP_VENV:-.venv}/bin/python" ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' scripts/eval_deepcoder.sh; exit 0; } ;;
esac
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
PATH=$bin:$PATH exec "$bin/python" -m recipes.code_rl.evaluate "$@"
