#!/usr/bin/env bash
# Harms a Ray cluster of namespaces on this machine at random while programs are judged over it, and checks the books:
# no program lost, none counted twice, nothing left on any node. As root.
#   bash scripts/chaos_cluster.sh              50 events: nodes killed, frozen, cut off and back, agents killed (minutes)
#   bash scripts/chaos_cluster.sh --events 10  fewer
#   bash scripts/chaos_cluster.sh --zoo        the hack zoo in the sandboxes of its nodes instead (minutes)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec "${OVERLAP_VENV:-.venv}/bin/python" scripts/chaos_cluster.py "$@"
