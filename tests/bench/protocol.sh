#!/usr/bin/env bash
# The attention-level rows of docs/quality.md, from the binaries: oscar-dump -> oscar-fit -> oscar-verify.
#   tests/bench/protocol.sh DATA [OUT]    DATA/smollm2 has calib_ids.npy (16 x 4,096) and probe_ids.npy (6 x 4,096)
# Takes about a quarter of an hour on two cores and 6 GiB of disk; the table is printed last.
set -euo pipefail
data=$(realpath "$1")/smollm2 out=${2:-out/protocol}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
model=$(examples/get_model.sh)
bin=build/release/bin
mkdir -p "$out"

$bin/oscar-dump --model "$model" --text "$data/calib_ids.npy" --probe "$data/probe_ids.npy" --seq-len 4096 --deterministic -o "$out/stats.h5"
fit() { # name, method, granularity
  $bin/oscar-fit "$out/stats.h5" --method "$2" --granularity "$3" -o "$out/$1" -q
}
fit ktk_vtv ktk_vtv layer
fit shared-proxy oscar-proxy layer
fit shared-exact oscar layer
fit head-proxy oscar-proxy head
fit head-exact oscar head
rows=()
for name in ktk_vtv shared-proxy shared-exact head-proxy head-exact; do rows+=(--rotations "$name=$out/$name"); done
$bin/oscar-verify "$out/stats.h5" "${rows[@]}" --probes 2 --positions 2048: --clip 0.96,0.92 --json "$out/report.json"
