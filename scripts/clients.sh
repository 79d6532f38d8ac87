#!/usr/bin/env bash
# Real packages of others, each in an environment of its own below FOLDER: clients of the gateway and of `sandbox serve`,
# frameworks that call our rewards, trackers (offline). Installs what is missing there, then runs their tests.
#   bash scripts/clients.sh                               all, below runs/clients: about 3 GB
#   bash scripts/clients.sh --only verl,wandb FOLDER      these alone, in another folder; tests of the others are skipped
#   bash scripts/clients.sh FOLDER -k ai                  words after it go to pytest
# The clients ai and openai-agents-js need node and npm.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
refuse() { echo "clients: $*" >&2; exit 2; }
names=$(sed -nE 's/^(python|above|node_packages) ([a-z0-9-]+) .*/\2/p' scripts/clients.sh | tr '\n' ' ')
only= folder=
while [ $# -gt 0 ]; do
  case "$1" in
    --only) only=,${2:-},; [ -n "${2:-}" ] || refuse "--only: name some of $names"; shift 2 ;;
    --*) [ -n "$folder" ] || refuse "$1: is not known; what goes to pytest stands behind FOLDER"; break ;;
    -*) break ;;
    *) [ -z "$folder" ] || break; folder=$1; shift ;;
  esac
done
for name in ${only//,/ }; do
  [[ " $names" == *" $name "* ]] || refuse "--only $name: there is no such package; those that are: $names"
done
folder=${folder:-runs/clients}
folder=$(realpath -m -- "$folder")
bash scripts/setup.sh
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin

wanted() { # NAME
  [[ -z $only || $only == *,"$1",* ]] && [ ! -e "$folder/$1/installed" ]
}
python() { # NAME PACKAGE...
  wanted "$1" || return 0
  local own=$folder/$1
  "$bin/uv" venv --quiet --clear --python "$bin/python" "$own"
  TMPDIR=$own "$bin/uv" pip install --quiet --python "$own/bin/python" "${@:2}" # where uv leaves lock files
  [ -z "${below:-}" ] || echo "$below" >"$(echo "$own"/lib/python*/site-packages)/_base.pth"
  touch "$own/installed"
}
above() { # NAME PACKAGE...   without what they ask for: they lie above the packages of this environment
  local below
  below=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  python "$1" --no-deps "${@:2}"
}
node_packages() { # NAME PACKAGE...
  wanted "$1" || return 0
  mkdir -p "$folder/$1"
  (cd "$folder/$1" && npm install --no-audit --no-fund "${@:2}" && touch installed)
}
# Of the gateway. litellm imports mcp where tools are offered, and does not ask for it.
python mini-swe-agent mini-swe-agent==2.4.6 litellm==1.106.2 openai==2.54.0 mcp==2.3.0
python smolagents 'smolagents[openai]==1.26.0' openai==3.54.0
python langgraph langgraph==1.2.24 langchain-openai==1.7.4 langchain==1.5.2
python pydantic-ai 'pydantic-ai-slim[openai]==2.68.0'
python openai-agents openai-agents==0.24.0
python llama-index llama-index-core==0.14.25 llama-index-llms-openai-like==0.8.1
python dspy dspy==3.4.1
python instructor instructor==1.17.0
python inspect-ai inspect-ai==0.3.285 openai==3.57.0
python verifiers verifiers==0.4.0
python verifiers-earlier verifiers==0.3.1
python autogen autogen-agentchat==0.7.5 'autogen-ext[openai]==0.7.5'
python crewai crewai==1.15.30
python haystack haystack-ai==3.4.1
python google-adk google-adk==2.13.0 litellm==1.106.2 mcp==2.3.0
node_packages ai ai@6.0.326 @ai-sdk/openai-compatible@2.0.91
node_packages openai-agents-js @openai/agents@0.20.0 zod@4.6.7
# Of `sandbox serve`, and frameworks.
above verl verl==0.9.1 tensordict==0.15.3 omegaconf==2.4.0 pyvers==0.2.3 antlr4-python3-runtime==4.9.3 codetiming==1.4.0 \
  hydra-core==1.3.8 orjson==3.13.0
above trl trl==1.16.0
python sandbox-fusion sandbox-fusion==0.3.7
# Trackers.
python wandb psutil pyyaml wandb==0.31.0
python trackio psutil pyyaml trackio==0.43.0

tests=(tests/overlap/server/test_clients.py tests/sandbox/serve/test_clients.py tests/recipes/environments
  tests/sandbox/rewards/test_frameworks.py tests/overlap/hooks/test_services.py)
OVERLAP_CLIENTS=$folder PATH=$bin:$PATH exec "$bin/python" -m pytest -n0 "${tests[@]}" "$@"
