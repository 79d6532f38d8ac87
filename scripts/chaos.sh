#!/usr/bin/env bash
# Breaks runs on purpose, then checks that nothing was lost, counted twice or left behind.
#   bash scripts/chaos.sh NAME [arguments]      bash scripts/chaos.sh NAME --help
exec bash "$(dirname "${BASH_SOURCE[0]}")/named.sh" chaos "$@"
