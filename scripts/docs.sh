#!/usr/bin/env bash
# Sets up if need be, then builds the documentation into build/docs; a warning or a broken link is an error.
#   bash scripts/docs.sh           build
#   bash scripts/docs.sh serve     build, and show it on http://127.0.0.1:8000 with every change
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
export NO_MKDOCS_2_WARNING=1 # it tells of another tool, with each build
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
case "${1:-build}" in
  build) exec "$bin/mkdocs" build --strict --quiet ;;
  serve) exec "$bin/mkdocs" serve --dev-addr 127.0.0.1:8000 ;;
  *) echo "docs: unknown argument '$1': use build or serve" >&2; exit 2 ;;
esac
