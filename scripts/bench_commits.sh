#!/usr/bin/env bash
# Is this commit as fast as that one? The default run, a few steps of it, from both in turns. Prints medians of times and memory, and ratios.
#   bash scripts/bench_commits.sh OLD [NEW] [--steps N] [--rounds N] [--set key=value ...]      NEW is HEAD where it is left out
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
PATH=$bin:$PATH exec "$bin/python" scripts/bench_commits.py "$@"
