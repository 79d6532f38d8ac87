#!/usr/bin/env bash
# What a judgement costs the driver of a cluster. Exit 1 where the bar of the simulation is missed.
#   bash scripts/bench_cluster.sh          1,000 fake nodes that fail, 100,000 trajectories in flight, a virtual clock
#   bash scripts/bench_cluster.sh --real   a Ray cluster of 1, 2, 3 machines of namespaces beside a local pool, as root
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec "${OVERLAP_VENV:-.venv}/bin/python" scripts/bench_cluster.py "$@"
