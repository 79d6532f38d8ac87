# Sourced by the other scripts: where the first word is --help, prints what stands above `set` in the script, and ends.
case "${1:-}" in
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
esac
