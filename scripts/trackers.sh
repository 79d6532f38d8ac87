#!/usr/bin/env bash
# Real trackers, offline: each is installed in an environment of its own below FOLDER, and gets the rows of a made run.
#   bash scripts/trackers.sh              below runs/trackers
#   bash scripts/trackers.sh FOLDER -k wandb     words after it go to pytest
# What is there already is not installed again. About 320 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
folder=$(realpath -m "${1:-runs/trackers}")
shift $(($# > 0))

python() { # NAME PACKAGE...
  local own=$folder/$1
  shift
  [ -e "$own/installed" ] && return
  "$bin/uv" venv --quiet --clear --python "$bin/python" "$own"
  "$bin/uv" pip install --quiet --python "$own/bin/python" psutil pyyaml "$@"
  touch "$own/installed"
}
python wandb wandb==0.31.0
python trackio trackio==0.43.0
python mlflow mlflow-skinny==3.17.2 sqlalchemy==2.0.46 alembic
python swanlab swanlab==0.10.3
OVERLAP_TRACKERS=$folder PATH=$bin:$PATH exec "$bin/python" -m pytest -n0 tests/overlap/trackers/test_services.py "$@"
