#!/usr/bin/env bash
# Tokens per second through the engine door against the bare AsyncLLM: same process, same requests, in turns.
#   bash scripts/bench_episodes.sh [--policy NAME_OR_PATH] [--rounds N] ...      prints the median ratio; bar 0.95
#   bash scripts/bench_episodes.sh --replicas 2 ...      two engines on a core each against one that has both; bar 0.95
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec "${OVERLAP_VENV:-.venv}/bin/python" scripts/bench_episodes.py "$@"
