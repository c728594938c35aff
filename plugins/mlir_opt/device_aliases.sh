#!/bin/sh
# Names and other names of devices in lower case, from the files that describe them, as initialisers of C++ pairs: {"h200", "nvidia-h200-sxm-141gb"},
# A test compares them with those that Python reads.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
awk '
FNR == 1 { name = FILENAME; sub(/.*\//, "", name); sub(/\.yaml$/, "", name); printf "{\"%s\", \"%s\"},\n", name, name }
/^aliases: \[.*\]/ {
    sub(/^aliases: \[/, ""); sub(/\].*$/, ""); gsub(/"/, "")
    count = split($0, aliases, /, */)
    for (i = 1; i <= count; ++i) printf "{\"%s\", \"%s\"},\n", tolower(aliases[i]), name
}' "$root"/features/devices/*.yaml
