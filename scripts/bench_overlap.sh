#!/usr/bin/env bash
# Overlap efficiency: the pipeline on a fake engine at 1/100 scale, then on the real engine. Prints ratios of one run.
#   bash scripts/bench_overlap.sh            both
#   bash scripts/bench_overlap.sh --fake     the fake engine alone (seconds, no model)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
python="${OVERLAP_VENV:-.venv}/bin/python"
"$python" scripts/bench_overlap.py
[ "${1:-}" = --fake ] && exit 0
"$python" scripts/bench_overlap_real.py --config recipes/code_rl/configs/cpu_smollm2.yaml
