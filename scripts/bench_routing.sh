#!/usr/bin/env bash
# Turns of episodes over several engines: where their past is cached, one after the other, or by what each has to do.
#   bash scripts/bench_routing.sh [ENGINES] [GROUPS] [SAMPLES]      4, 16 and 1
# Bars: 1.8 times one after the other, 1.2 times the skew of the fewest requests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec "${OVERLAP_VENV:-.venv}/bin/python" scripts/bench_routing.py "$@"
