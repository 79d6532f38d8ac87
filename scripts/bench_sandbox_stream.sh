#!/usr/bin/env bash
# The stream bar: real model programs through one pool, twice. Exit 1 when one is lost, left over, or judged otherwise.
#   bash scripts/bench_sandbox_stream.sh [N]      N programs (default 10000) of ../shared/data/llm_samples
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec "${OVERLAP_VENV:-.venv}/bin/python" scripts/bench_sandbox_stream.py "$@"
