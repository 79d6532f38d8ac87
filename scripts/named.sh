#!/usr/bin/env bash
# For bench.sh and chaos.sh: runs scripts/FOLDER/NAME.py with its arguments. --help installs nothing.
set -euo pipefail
folder=$1 name=${2:-}
shift $(($# > 1 ? 2 : 1))
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(realpath -m "${OVERLAP_VENV:-.venv}")/bin

case "$name" in
  -h | --help)
    sed -n '2,/^exec /{/^exec /d;s/^# \{0,1\}//;p}' "scripts/$folder.sh"
    echo 'Names:'
    for file in "scripts/$folder"/[!_]*.py; do # each with the first line of its docstring
      printf '  %-16s %s\n' "$(basename "$file" .py)" "$(sed -n '1{s/^"""//;s/"""$//;p}' "$file")"
    done
    exit ;;
  '') echo "$folder.sh: give a name; bash scripts/$folder.sh --help lists them" >&2; exit 2 ;;
  _* | */*) program= ;;
  *) program=scripts/$folder/$name.py ;;
esac
[ -f "$program" ] || { echo "$folder.sh: there is no '$name'; bash scripts/$folder.sh --help lists the names" >&2; exit 2; }
case " $* " in
  *" --help "* | *" -h "*) # before a set-up: what the program says of itself
    [ -x "$bin/python" ] || { sed -n '1s/^"""//;/"""$/{s/"""$//;p;q};p' "$program"; exit 0; } ;;
  *) bash scripts/setup.sh ;;
esac
# ninja, which compiles extensions when they are first needed, is among the environment's programs
PATH=$bin:$PATH PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} exec "$bin/python" "$program" "$@"
