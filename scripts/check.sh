#!/usr/bin/env bash
# Sets up if need be, then every check that runs no code: format, lint, types, import contracts, sizes.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh || exit
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
failed=()

check() { # NAME COMMAND...: runs all of them, so that one pass shows every fault
  local name=$1
  shift
  printf -- '-- %s\n' "$name"
  "$@" || failed+=("$name")
}
check format "$bin/ruff" format --check .
check lint "$bin/ruff" check .
check types "$bin/mypy" overlap sandbox recipes
check imports "$bin/lint-imports"
check interfaces "$bin/python" scripts/checks/interfaces.py
check circles "$bin/python" scripts/checks/circles.py
check sizes "$bin/python" scripts/checks/sizes.py
check names "$bin/python" scripts/checks/names.py
check promises "$bin/python" scripts/checks/promises.py
check words "$bin/python" scripts/checks/words.py
check docs env NO_MKDOCS_2_WARNING=1 "$bin/mkdocs" build --strict --quiet

if [ ${#failed[@]} = 0 ]; then echo 'check: all clean'; else echo "check: ${failed[*]} failed" >&2; exit 1; fi
