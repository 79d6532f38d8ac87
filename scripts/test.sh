#!/usr/bin/env bash
# Sets up if need be, then runs the tests: units first, then the ones marked e2e. Words after it go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
PATH=$bin:$PATH exec "$bin/python" -m pytest "$@"
