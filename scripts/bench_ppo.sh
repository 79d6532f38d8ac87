#!/usr/bin/env bash
# PPO beside GRPO: the default recipe both ways, 2 seeds, 30 steps each. About half an hour on 2 cores.
#   bash scripts/bench_ppo.sh                      goes on where it was stopped, in runs/ppo
#   bash scripts/bench_ppo.sh runs/mine --steps 8
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec "${OVERLAP_VENV:-.venv}/bin/python" scripts/bench_ppo.py "$@"
