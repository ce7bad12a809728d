#!/bin/sh
# merge_static.sh OUT ARCHIVE... - link archives into one object, keep only waste_* global, archive.
set -eu
out=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"${LD:-ld}" -r -o "$dir/waste.o" --whole-archive "$@"
"${OBJCOPY:-objcopy}" -w --keep-global-symbol='waste_*' "$dir/waste.o"
rm -f "$out"
"${AR:-ar}" rcs "$out" "$dir/waste.o"
