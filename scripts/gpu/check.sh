#!/usr/bin/env bash
# All that only a CUDA machine can show, in one command: stages that can be run apart, each at most 8 minutes.
#   bash scripts/gpu/check.sh                       every stage, in order; figures in gpu_check.json
#   bash scripts/gpu/check.sh learner hybrid        these alone
#   bash scripts/gpu/check.sh --python python3 attention learner resume ipc step
#                                                   no set-up: a Python that has torch, transformers and deepspeed
#   bash scripts/gpu/check.sh --carry DIR           pack what such a Python lacks on a machine without a network, in a
#                                                   folder of the repository
#   bash scripts/gpu/check.sh --rehearse            on the CPU, to see that the checks themselves work
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case " $* " in
  *" --help "* | *" -h "*) # without a set-up only what stands above: help should not install anything
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' scripts/gpu/check.sh
    [ -x "${OVERLAP_VENV:-.venv}/bin/python" ] || exit 0
    echo ;;
esac
refuse() { echo "gpu check: $1" >&2; exit 2; }
python=
if [ "${1:-}" = --python ]; then
  python=${2:-}
  command -v "$python" >/dev/null || refuse "--python '$python': there is no such command: name a Python that has torch, transformers and deepspeed"
  shift 2
fi
[ "${1:-}" = --carry ] || case " $* " in
  *" --python "* | *" --carry "*) refuse "--python NAME and --carry DIR stand before stages and other options" ;;
esac
if [ -z "$python" ]; then
  bash scripts/setup.sh
  python=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin/python
  PATH=$(dirname "$python"):$PATH # ninja, which builds the just-in-time extensions, is in there too
fi
if [ "${1:-}" = --carry ]; then shift; exec "$python" scripts/gpu/_carry.py "$@"; fi
PATH=$PATH PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} exec "$python" scripts/gpu/check.py "$@"
