#!/usr/bin/env bash
# Kills a run at random moments, goes on with it, and checks the books: no prompt lost, none twice, nothing left behind.
#   bash scripts/chaos.sh --fakes              50 kills of runs on the fakes, at every staleness from 0 to 4 (minutes)
#   bash scripts/chaos.sh --fakes --kills 5    fewer
#   bash scripts/chaos.sh --real               a tiny run on engine, learner and sandbox; each kind of process (minutes)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec "${OVERLAP_VENV:-.venv}/bin/python" scripts/chaos.py "$@"
