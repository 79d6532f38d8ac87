#!/usr/bin/env bash
# Real clients against the gateway: each is installed in an environment of its own below FOLDER, then runs as a program.
#   bash scripts/clients.sh              below runs/clients
#   bash scripts/clients.sh FOLDER -k ai     words after it go to pytest
# Needs node and npm for the client ai; what is there already is not installed again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
folder=$(realpath -m "${1:-runs/clients}")
shift $(($# > 0))

python() { # NAME PACKAGE...
  local own=$folder/$1
  shift
  [ -e "$own/installed" ] && return
  "$bin/python" -m venv --clear "$own"
  "$own/bin/pip" install --quiet --no-cache-dir "$@"
  touch "$own/installed"
}
# litellm imports mcp where tools are offered, and does not ask for it.
python mini-swe-agent mini-swe-agent==2.4.6 litellm==1.106.2 openai==2.54.0 mcp==2.3.0
python smolagents 'smolagents[openai]==1.26.0' openai==3.54.0
if [ ! -e "$folder/ai/installed" ]; then
  mkdir -p "$folder/ai"
  (cd "$folder/ai" && npm install --no-audit --no-fund ai@6.0.326 @ai-sdk/openai-compatible@2.0.91 && touch installed)
fi
OVERLAP_CLIENTS=$folder PATH=$bin:$PATH exec "$bin/python" -m pytest -n0 tests/overlap/server/test_clients.py "$@"
