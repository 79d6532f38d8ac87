#!/usr/bin/env bash
# What staleness costs and brings: the default recipe in four arms, 3 seeds, 20 steps each. About an hour on 2 cores.
#   bash scripts/bench_arms.sh runs/arms     goes on where it was stopped
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
python="${OVERLAP_VENV:-.venv}/bin/python"
"$python" scripts/bench_arms.py "${@:-runs/arms}"
