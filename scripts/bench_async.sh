#!/usr/bin/env bash
# Schedules beside each other: serial, overlapped, staleness 1, 2 and 4 with each landing, against the best there can be.
# On the fakes and a virtual clock: seconds, and the same on every machine. --driver: what the loop's own CPU is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
python="${OVERLAP_VENV:-.venv}/bin/python"
"$python" scripts/bench_async.py "$@"
