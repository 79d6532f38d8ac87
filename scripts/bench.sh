#!/usr/bin/env bash
# Runs a benchmark by its name, after the set-up where one is needed.
#   bash scripts/bench.sh NAME [arguments]      bash scripts/bench.sh NAME --help
exec bash "$(dirname "${BASH_SOURCE[0]}")/named.sh" bench "$@"
