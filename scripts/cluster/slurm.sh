#!/usr/bin/env bash
# A training run over the nodes of a SLURM job: `sbatch --nodes=4 scripts/cluster/slurm.sh --config FILE key=value ...`,
# in a clone that every node sees and that scripts/setup.sh has set up. Options before the script's name are sbatch's
# (--partition, --account, --time, --gpus-per-node=8); words after it are for `overlap train`.
#   first node      the cluster's head, a node of it, and the run itself: engines and learner
#   further nodes   a node of the cluster each, which judges programs
# The job has a cluster of its own, with a token that was made for it. However the job ends, all of it ends.
# Variables: OVERLAP_HEAD_ADDRESS is the first node's address where its name leads to none that the others reach (or not
# to the network that is meant), OVERLAP_VENV the environment that is not .venv.
#SBATCH --job-name=overlap
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --output=overlap-%j.log
# A minute before the time limit, and at `scancel --batch --signal=TERM JOB`, the run is asked to save what it learned.
#SBATCH --signal=B:TERM@60
set -euo pipefail

fail() {
  echo "slurm.sh: $*" >&2
  exit 2
}
[ -n "${SLURM_JOB_ID:-}" ] || fail "is for sbatch: sbatch --nodes=2 scripts/cluster/slurm.sh --config FILE"
cd "${SLURM_SUBMIT_DIR:-.}" # SLURM runs a copy of this file from elsewhere
overlap=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin/overlap
[ -x "$overlap" ] || fail "no $overlap: submit it from a clone where scripts/setup.sh has run, or set OVERLAP_VENV"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ "${#nodes[@]}" -gt 0 ] || fail "SLURM names no nodes for the job"
head=${nodes[0]}
address=${OVERLAP_HEAD_ADDRESS:-$(getent ahostsv4 "$head" | awk 'NR == 1 {print $1}' || true)}
case "$address" in
  "" | 127.*) fail "the name $head leads to '$address', which other nodes do not reach: set OVERLAP_HEAD_ADDRESS" ;;
esac
port=$((20000 + SLURM_JOB_ID % 10000)) # jobs that share a node do not share a port

# What the job alone may read: its token, and what `overlap cluster` keeps of each node. On a disk that every node sees.
private=$(mktemp -d "$PWD/.overlap-$SLURM_JOB_ID-XXXXXX")
(umask 077 && od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >"$private/token")
export XDG_STATE_HOME=$private

# A part is asked to end; one that does not within so many seconds is killed.
end() {
  local pid=$1 seconds=$2
  kill -TERM "$pid" 2>/dev/null || return 0
  while [ "$seconds" -gt 0 ] && kill -0 "$pid" 2>/dev/null; do
    sleep 1
    seconds=$((seconds - 1))
  done
  kill -KILL "$pid" 2>/dev/null || true
}

run='' parts=()
clean() {
  local code=$? pid
  trap '' TERM INT HUP
  trap - EXIT
  if [ -n "$run" ]; then end "$run" 50; fi
  for pid in "${parts[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done # srun hands it on to each node
  for pid in "${parts[@]}"; do end "$pid" 25; done
  rm -rf "$private"
  exit "$code"
}
trap clean EXIT
trap 'exit 143' TERM
trap 'exit 130' INT HUP

# In a step of SLURM's: it ends with the job whatever happens, and has all cores of its node. For the background: it takes
# the place of the shell that runs it, and so a signal reaches it.
on() { exec srun --overlap --cpu-bind=none --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" --kill-on-bad-exit=0 "$@"; }

on --nodes=1 --ntasks=1 --nodelist="$head" \
  "$overlap" cluster up --block --address "$address:$port" --token-file "$private/token" &
parts+=($!)
for ((waited = 0; ; waited++)); do
  if (: <>"/dev/tcp/$address/$port") 2>/dev/null; then break; fi
  kill -0 "${parts[0]}" 2>/dev/null || fail "the cluster's head did not start on $head: see above"
  [ "$waited" -lt 120 ] || fail "the cluster's head on $head did not answer at $address:$port within 120 s"
  sleep 1
done
more=$((${#nodes[@]} - 1))
if [ "$more" -gt 0 ]; then # a node that comes late, or not at all, holds nothing up
  on --nodes="$more" --ntasks="$more" --ntasks-per-node=1 --exclude="$head" \
    "$overlap" cluster up --block --join "$address:$port" --token-file "$private/token" &
  parts+=($!)
fi

"$overlap" train "$@" "cluster.address=$address:$port" & # it finds the token where `up` has put it
run=$!
code=0
wait "$run" || code=$?
run=''
exit "$code"
