#!/usr/bin/env bash
# Milliseconds per judged program: our jail and three rivals in turns within one run. Prints medians and ratios.
#   bash scripts/bench_sandbox.sh                  all
#   bash scripts/bench_sandbox.sh --rounds 40      more of it; see --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
PYTHONPATH=. "${OVERLAP_VENV:-.venv}/bin/python" scripts/bench_sandbox.py "$@"
