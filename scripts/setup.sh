#!/usr/bin/env bash
# Makes the virtual environment ready: every package pinned, CPU or CUDA by what the machine has.
# Run it as often as you like: a ready one is recognised at once, an interrupted one is repaired.
#
#   bash scripts/setup.sh            set up
#   bash scripts/setup.sh --device   print cpu or cuda, do nothing
#
#   OVERLAP_DEVICE=cpu|cuda   do not look for a GPU       OVERLAP_VENV=DIR   another place than .venv
#   OVERLAP_PYTHON=PATH       the Python to build it with
#
# Exit codes: 0 ready, 2 something that you can repair (the last line says how), 1 anything else.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=$(realpath -m "${OVERLAP_VENV:-.venv}")
log=$venv/setup.log
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX # they would lead the packages elsewhere

say() { printf 'setup: %s\n' "$*"; }
refuse() { printf 'setup: %s\n' "$*" >&2; exit 2; }

# --- what the machine has -------------------------------------------------------------------------------------

has_gpu() { # by the driver's tool, or where a container has none by the driver's devices
  if command -v nvidia-smi >/dev/null; then timeout 30 nvidia-smi -L 2>/dev/null | grep '^GPU ' >/dev/null
  else compgen -G '/dev/nvidia[0-9]*' >/dev/null; fi
}

find_device() {
  case ${OVERLAP_DEVICE:-} in
    cpu | cuda) echo "$OVERLAP_DEVICE" ;;
    '') if has_gpu; then echo cuda; else echo cpu; fi ;;
    *) refuse "OVERLAP_DEVICE is '$OVERLAP_DEVICE': use cpu or cuda, or leave it unset" ;;
  esac
}

find_python() { # prints a Python >= 3.11; 3.11 is the one that the pins were resolved for, so it goes first
  local name
  for name in ${OVERLAP_PYTHON:-python3.11 python3.12 python3.13 python3}; do
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$name"; return; }
  done
  if [ -n "${OVERLAP_PYTHON:-}" ]; then
    refuse "OVERLAP_PYTHON is '$OVERLAP_PYTHON', which is no Python >= 3.11: name another one, or leave it unset"
  fi
  refuse "no Python >= 3.11 found ($(python3 --version 2>/dev/null || echo 'no python3')):" \
    "apt-get install python3.11 python3.11-venv python3.11-dev"
}

check_tools() { # the compiler is for DeepSpeed's and vLLM's just-in-time builds; ninja comes with the packages
  local py=$1 version
  version=$("$py" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [ "$(uname -m)" = x86_64 ] || refuse "the pins are for x86_64, this machine is $(uname -m): use an x86_64 machine"
  "$py" -c 'import os, sys; name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
sys.exit([*map(int, version.split("."))] < [2, 31])' 2>/dev/null ||
    refuse "the packages want glibc 2.31 or newer (Debian 11, Ubuntu 20.04, RHEL 9): use a newer system, or a container"
  command -v g++ >/dev/null || refuse "no C++ compiler (g++): apt-get install g++"
  "$py" -c 'import venv, ensurepip' 2>/dev/null || refuse "$py has no venv module: apt-get install python$version-venv"
  "$py" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    refuse "$py has no header files (Python.h): apt-get install python$version-dev"
  if [ "$device" = cuda ]; then check_driver; fi
}

check_driver() { # the pinned torch carries CUDA 13, which wants driver 580
  local driver
  driver=$(timeout 30 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
  [ -z "$driver" ] || [ "${driver%%.*}" -ge 580 ] ||
    refuse "the NVIDIA driver is $driver, CUDA 13 wants 580 or newer: update the driver, or set OVERLAP_DEVICE=cpu"
}

check_space() { # DIR: room for the packages; the download cache shares files with the environment where it can
  local dir=$1 need=5 free
  if [ "$device" = cuda ]; then need=20; fi
  while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
  [ -w "$dir" ] || refuse "cannot write to $dir: set OVERLAP_VENV to a directory of yours"
  free=$(($(df -Pk "$dir" | awk 'NR == 2 { print $4 }') / 1048576))
  [ "$free" -ge "$need" ] || refuse "$free GiB free under $dir, $need needed: free some, or set OVERLAP_VENV to another disk"
}

# --- is it ready? ---------------------------------------------------------------------------------------------

stamp() { # one line that changes when the environment must
  local inputs=(requirements/{"$device",dev,build,bootstrap}.txt setup.cfg pyproject.toml)
  printf '%s %s %s %s\n' "$device" "$root" "$("$venv/bin/python" -V 2>&1)" "$(cat "${inputs[@]}" | sha256sum | cut -c1-16)"
}

is_ready() {
  [ -x "$venv/bin/python" ] && [ -f "$venv/setup.stamp" ] && [ ! -e "$venv/setup.incomplete" ] &&
    [ "$(cat "$venv/setup.stamp")" = "$(stamp)" ] &&
    "$venv/bin/python" -I scripts/checks/environment.py overlap-rl "requirements/$device.txt" requirements/dev.txt >>"$log" 2>&1
}

# --- make it --------------------------------------------------------------------------------------------------

logged() { # SECONDS COMMAND...: runs it into the log; it ends in time, and when we end. What takes long is counted.
  local limit=$1 rc=0 command
  shift
  printf '\n== %s\n' "$*" >>"$log"
  timeout -k 10 "$limit" "$@" >>"$log" 2>&1 &
  command=$!
  while true; do
    timeout 6 tail -s 0.1 -f /dev/null --pid="$command" 9>&- &
    wait "$!" || true
    kill -0 "$command" 2>/dev/null || break
    say "  $((SECONDS - start)) s, $(du -sm "$venv" 2>/dev/null | cut -f1) MB on disk"
  done
  wait "$command" || rc=$?
  return "$rc"
}

end_command() { # timeout leads a process group: what outlives it there would keep the lock
  local leader
  for leader in $(jobs -p); do
    kill "$leader" 2>/dev/null || true
    wait "$leader" 2>/dev/null || true
    kill -KILL -- "-$leader" 2>/dev/null || true
  done
}

step() { # TITLE SECONDS COMMAND...: a logged command that must succeed
  local title=$1 rc=0
  shift
  say "$title"
  logged "$@" || rc=$?
  [ "$rc" = 0 ] || explain "$title" "$rc"
}

last_lines() { tail -n 40 "$log" | grep -iE "$1" >/dev/null; }

explain() { # TITLE CODE
  tail -n 15 "$log" >&2
  if [ "$2" = 124 ]; then refuse "$1: no end in time: run it again, what was downloaded is kept; log: $log"; fi
  if last_lines 'No space left'; then
    refuse "$1: the disk is full: free some, or set OVERLAP_VENV to another disk; log: $log"
  fi
  if last_lines 'dns error|error sending request|connection (refused|reset|error)|name resolution|unreachable'; then
    refuse "$1: the package registry cannot be reached: repair the network or pip's configuration; log: $log"
  fi
  printf 'setup: %s failed (exit code %s); log: %s\n' "$1" "$2" "$log" >&2
  exit 1
}

make_venv() {
  # setup.owner says that the directory is ours to empty, and where it was made: its programs name that path.
  # setup.incomplete says that a set-up did not come to its end.
  local py=$1 owner=$venv/setup.owner
  reinstall=()
  if [ -e "$venv/setup.incomplete" ] || ! "$venv/bin/python" -c '' 2>/dev/null ||
    { [ -e "$owner" ] && [ "$(cat "$owner")" != "$venv" ]; }; then
    if [ -e "$owner" ]; then
      find "$venv" -mindepth 1 -maxdepth 1 ! -name 'setup.*' -exec rm -rf {} +
    elif [ -x "$venv/bin/python" ]; then
      reinstall=(--reinstall)
    elif [ -n "$(find "$venv" -mindepth 1 -maxdepth 1 ! -name 'setup.*' -print -quit)" ]; then
      refuse "$venv is there and is no virtual environment: set OVERLAP_VENV to another directory, or remove it"
    fi
  fi
  if [ -e "$owner" ] || [ ! -e "$venv/bin/python" ]; then echo "$venv" >"$owner"; fi
  rm -f "$venv/setup.stamp"
  touch "$venv/setup.incomplete"
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
    step "virtual environment ($("$py" -V))" 300 "$py" -m venv "$venv"
}

install() {
  local python=$venv/bin/python uv=$venv/bin/uv wheels=$venv/setup.wheels pin count size= torch=()
  step 'installer' 300 "$python" -m pip install -q --no-input -r requirements/bootstrap.txt
  local -x TMPDIR=$venv/setup.tmp  # uv leaves lock files behind
  rm -rf "$wheels" "$TMPDIR"
  mkdir "$TMPDIR"
  if [ "$device" = cpu ]; then
    # pip may be configured to find the CPU build of torch where uv does not look; where it is not, uv knows a place.
    say 'torch for CPU'
    pin=$(grep '^torch==' requirements/cpu.txt)
    if compgen -G "$venv/lib/python3*/site-packages/${pin/==/-}.dist-info" >/dev/null && [ ${#reinstall[@]} = 0 ]; then :
    elif logged 900 "$python" -m pip download -q --no-input --no-deps -d "$wheels" "$pin"; then torch=(--find-links "$wheels")
    else torch=(--torch-backend cpu); fi
  fi
  # The lists are closed and exact, so nothing is resolved: --no-deps is what keeps the left-out packages out.
  count=$(cat requirements/{"$device",dev}.txt | grep == | sort -u | wc -l)
  if [ "$device" = cpu ]; then size=': 1.5 GB to fetch unless they are in the cache, 4.4 GB on disk'; fi
  # Compiled now, for where PYTHONDONTWRITEBYTECODE is set every start of an engine would compile them anew, for a minute.
  step "$count packages$size" 2400 "$uv" pip install --python "$python" --no-progress --no-deps --compile-bytecode \
    "${torch[@]}" "${reinstall[@]}" --build-constraints requirements/build.txt -r "requirements/$device.txt" -r requirements/dev.txt
  step 'overlap-rl itself' 300 "$uv" pip install --python "$python" --no-progress --no-deps --no-build-isolation \
    --reinstall -e .
  rm -rf "$wheels" "$TMPDIR"
  step 'a last look' 60 "$python" -I scripts/checks/environment.py overlap-rl "requirements/$device.txt" requirements/dev.txt
  stamp >"$venv/setup.stamp.new"
  rm "$venv/setup.incomplete"
  mv "$venv/setup.stamp.new" "$venv/setup.stamp"
}

main() {
  local python
  start=$SECONDS
  device=$(find_device)
  if [ "${1:-}" = --device ]; then echo "$device"; exit 0; fi
  [ $# = 0 ] || refuse "unknown argument '$1': it takes --device or nothing"
  if is_ready; then say "ready ($venv, $device)"; exit 0; fi

  python=$(find_python)
  check_tools "$python"
  [ -e "$venv/bin/uv" ] || check_space "$venv"
  mkdir -p "$venv"
  exec 9>"$venv/setup.lock"
  flock -n 9 || {
    say 'another set-up is running; waiting for it'
    flock -w 3600 9 || refuse 'another set-up has run for an hour: end it, then run this again'
  }
  if is_ready; then say "ready ($venv, $device)"; exit 0; fi

  : >"$log"
  trap end_command EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  say "$device packages into $venv"
  make_venv "$python"
  install
  say "$venv/bin/overlap doctor says whether this machine lacks anything for a run"
  say "ready in $((SECONDS - start)) s ($venv, $device)"
}

main "$@"
