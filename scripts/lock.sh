#!/usr/bin/env bash
# Writes requirements/{cpu,cuda,dev}.txt anew from the .in files: the whole closure, each package with its version.
# Extra words go to `uv pip compile`, e.g. `bash scripts/lock.sh --upgrade`. Downloads metadata only.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "$0")/../requirements"
venv=${OVERLAP_VENV:-../.venv}
# Torch comes from where pip of this machine finds it, or else from where uv knows the CPU builds to be.
if [ -n "${PIP_FIND_LINKS:-}" ]; then torch=(--find-links "$PIP_FIND_LINKS"); else torch=(--torch-backend cpu); fi

lock() { # NAME FILE... [uv options]: FILEs -> NAME.txt; versions already in NAME.txt are kept where they still fit
  local name=$1 raw; shift
  raw=$(mktemp)
  cp "$name.txt" "$raw" 2>/dev/null || true
  "$venv/bin/uv" pip compile -q --python-platform x86_64-manylinux_2_28 --python-version 3.11 --no-header \
    --no-annotate --override overrides.txt "$@" -o "$raw" >/dev/null || { rm -f "$raw"; return 1; }
  { echo "# Written by scripts/lock.sh from the .in files."; cat "$raw"; } >"$name.txt"
  rm -f "$raw"
}
lock cpu base.in cpu.in "${torch[@]}" "$@"
lock cuda base.in cuda.in "$@"
lock dev dev.in -c cpu.txt "$@"
