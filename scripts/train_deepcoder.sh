#!/usr/bin/env bash
# The default run: sets up if need be, then trains a real policy by GRPO to write programs.
# Words after it go to `overlap train`: more `key=value` settings, --dry-run, or another --config FILE.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
case $(bash scripts/setup.sh --device) in
  cuda) config=recipes/code_rl/configs/deepcoder_14b_16k.yaml ;;
  *) config=recipes/code_rl/configs/cpu_smollm2.yaml ;;
esac
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
# ninja, which builds the just-in-time extensions, is in there too.
PATH=$bin:$PATH exec "$bin/overlap" train --config "$config" "$@"
