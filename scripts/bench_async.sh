#!/usr/bin/env bash
# Schedules beside each other: serial, overlapped, staleness 1, 2 and 4 with each landing, against the best there can be.
#   bash scripts/bench_async.sh            on the fakes and a virtual clock: seconds, and the same on every machine
#   bash scripts/bench_async.sh --real     engine, sandbox and learner with the default recipe (half an hour on 2 cores)
#   bash scripts/bench_async.sh --real --cases 16      with longer judging
#   bash scripts/bench_async.sh --driver   the CPU that the loop itself takes for a trajectory
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
python="${OVERLAP_VENV:-.venv}/bin/python"
case ${1:-} in
  --real) exec "$python" scripts/bench_async_real.py --config recipes/code_rl/configs/cpu_smollm2.yaml "${@:2}" ;;
  --driver) exec "$python" scripts/bench_driver.py "${@:2}" ;;
  *) exec "$python" scripts/bench_async.py "$@" ;;
esac
