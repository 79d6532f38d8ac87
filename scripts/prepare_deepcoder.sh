#!/usr/bin/env bash
# Which problems of public sets are trained on, by DeepCoder's filters: writes a split file for data.train.
#   bash scripts/prepare_deepcoder.sh --out runs/deepcoder.jsonl [SOURCE ...] [--against SET]
# --help tells the rest. Stopped, the same command goes on where it was.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
PATH=$bin:$PATH exec "$bin/python" -m recipes.code_rl.prepare "$@"
