#!/usr/bin/env bash
# What turns cost: episodes at once by Task.rollout and by the gateway, beside the same requests to the bare engine.
#   bash scripts/bench_episodes.sh [EPISODES] [TURNS]      200 and 4; bars: 0.6 of the tokens per second, 20 ms a turn
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec "${OVERLAP_VENV:-.venv}/bin/python" scripts/bench_episodes.py "$@"
