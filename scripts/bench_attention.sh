#!/usr/bin/env bash
# Attention of micro-batches beside plain causal attention: pairs of tokens by count, and seconds by turns, G = 8.
#   bash scripts/bench_attention.sh [--pairs] [--longest TOKENS] [--budget TOKENS]      --pairs: count, do not time
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
python="${OVERLAP_VENV:-.venv}/bin/python"
"$python" scripts/bench_attention.py "$@"
