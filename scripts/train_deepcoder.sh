#!/usr/bin/env bash
# The default run: sets up if need be, then trains a real policy by GRPO to write programs.
#   without a GPU          SmolLM2-135M on small Python functions
#   with 8 GPUs or more    DeepCoder-14B as published: its data is prepared, then 16K and 32K, one command
#   with fewer to be seen  DeepCoder-1.5B, for one card of 80 GB
# On GPUs the same command goes on where it was stopped. Words after it: more `key=value` settings, --dry-run (with
# --devices 8x80 for what these GPUs would run, wherever that is asked); or, as words for `overlap train`, another
# --config FILE, --resume, --from-rollouts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case " $* " in
  *" --help "* | *" -h "*) # without a set-up only what stands above: help should not install anything
    [ -x "${OVERLAP_VENV:-.venv}/bin/python" ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' scripts/train_deepcoder.sh; exit 0; } ;;
esac
bash scripts/setup.sh
device=$(bash scripts/setup.sh --device)
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin
export PATH=$bin:$PATH # ninja, which builds the just-in-time extensions, is in there too
configs=recipes/code_rl/configs
case " $* " in
  *" --config"*) ;;
  *" --resume"*) exec "$bin/overlap" train "$@" ;; # by the configuration that the run has left
esac
case " $* " in *" --config"* | *" --resume"* | *" --from-rollouts"*) plain=yes ;; *) plain= ;; esac
planned= before=
for word in "$@"; do
  case "$word" in --devices=*) planned=${word#*=} ;; esac
  if [ "$before" = --devices ]; then planned=$word; fi
  before=$word
done
if [ "$device" = cpu ] && [ -z "$planned" ]; then
  exec "$bin/overlap" train --config $configs/cpu_smollm2.yaml "$@"
fi
gpus=${planned%%x*} # of the hardware that is planned for (--dry-run --devices 8x80), else of this machine
case "$gpus" in
  "" | *[!0-9]*)
    gpus=$(timeout 30 nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
    if [ "${CUDA_VISIBLE_DEVICES+given}" ]; then # the others are hidden
      IFS=, read -ra shown <<<"$CUDA_VISIBLE_DEVICES"
      if [ "${#shown[@]}" -lt "$gpus" ]; then gpus=${#shown[@]}; fi
    fi
    ;;
esac
if [ "$gpus" -ge 8 ]; then stages=($configs/deepcoder_14b_16k.yaml $configs/deepcoder_14b_32k.yaml); else stages=($configs/deepcoder_1.5b_1gpu.yaml); fi
if [ "$plain" ]; then exec "$bin/overlap" train --config "${stages[0]}" "$@"; fi
exec "$bin/python" -m recipes.code_rl.stages --prepare runs/deepcoder_data.jsonl "${stages[@]}" "$@"
