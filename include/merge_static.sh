#!/bin/sh
# merge_static.sh OUT ARCHIVE... - link archives into one object, keep only waste_* global, archive.
# LD, OBJCOPY and AR: those of the machine that it is for.
set -eu
out=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$LD" -r -o "$dir/waste.o" --whole-archive "$@"
"$OBJCOPY" -w --keep-global-symbol='waste_*' "$dir/waste.o"
rm -f "$out"
"$AR" rcs "$out" "$dir/waste.o"
