#!/usr/bin/env bash
# How good is a policy? Sets up if need be, then draws answers, judges them by all tests, and prints pass@k.
#   bash scripts/eval_deepcoder.sh                                    the default policy on the shipped held-out problems
#   bash scripts/eval_deepcoder.sh runs/NAME                          what a run has learned, asked as it was trained
#   bash scripts/eval_deepcoder.sh POLICY --set livecodebench --from 2024-08-01 --to 2025-02-01
# --help tells the rest. Stopped, the same command goes on where it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
PATH=$bin:$PATH exec "$bin/python" -m recipes.code_rl.evaluate "$@"
