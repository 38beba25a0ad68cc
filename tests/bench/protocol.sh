#!/usr/bin/env bash
# The tables of docs/quality.md, from the binaries: oscar-dump -> oscar-verify, which fits every row itself.
#   tests/bench/protocol.sh DATA [OUT]    DATA/smollm2 has calib_ids.npy (16 x 4,096) and probe_ids.npy (6 x 4,096)
# Takes about an hour and a half on two cores and 12 GiB of disk; finished rows are kept, so it can be stopped and run again.
set -euo pipefail
data=$(realpath "$1")/smollm2 out=${2:-out/protocol}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
model=$(examples/get_model.sh)
bin=build/release/bin
mkdir -p "$out"

[ -f "$out/stats.h5" ] ||
  $bin/oscar-dump --model "$model" --text "$data/calib_ids.npy" --probe "$data/probe_ids.npy" --seq-len 4096 --rows 65536 -o "$out/stats.h5"

# The rows of the reference, by name; 'old' are the statistics and the grouping that it used for vector codes.
old=target=qqt-mass:importance=attention:partition=volume:rows=16384 old_v=partition=volume:rows=16384
lm=codec=lloyd-max-wide:clip=0
reference=(
  "KtK/VtV + clip=ktk_vtv"
  "OSCAR shared proxy + clip=oscar-proxy"
  "OSCAR shared exact sst + clip=oscar"
  "OSCAR per head + clip=oscar-proxy:granularity=head"
  "per head centred K + clip=center"
  "per head k_mean_w Lloyd-Max K=oscar:granularity=head:centre=weighted:codec=lloyd-max:clip=0/perhead"
  "hadamard k_mean_w Lloyd-Max K=hadamard:centre=weighted:codec=lloyd-max/hadamard:clip=0.92"
  "OSCAR shared wide Lloyd-Max=oscar-proxy:$lm"
  "oscar-dc shared clip .96=oscar-dc:granularity=layer:clip=0.96/oscar"
  "oscar-dc shared wide Lloyd-Max=oscar-dc:granularity=layer:$lm/oscar-dc:granularity=layer:centre=mean:$lm"
  "oscar-dc per head clip .96=oscar-dc:clip=0.96/perhead"
  "oscar-dc per head wide Lloyd-Max K=oscar-dc:$lm/perhead"
  "nova"
  "awsq 2.0=awsq:target=qqt-mass:importance=attention:rows=16384/awsq:rows=16384"
  "awsq 2.5=awsq:target=qqt-mass:importance=attention:bits=2.5:rows=16384/awsq:bits=2.5:rows=16384"
  "awvq norm K static V 4x8=awvq:norm=1:$old/awvq:$old_v"
  "awvq 4x8=awvq:$old/awvq:$old_v"
  "awvq K 4x8 V 8x8=awvq:$old/awvq:shape=8x8:$old_v"
  "awvq K 4x10 V 4x6=awvq:shape=4x10:$old/awvq:shape=4x6:$old_v"
  "awvq K 4x10 V 8x8=awvq:shape=4x10:$old/awvq:shape=8x8:$old_v"
  "awvq K 4x6 V 16x8=awvq:shape=4x6:$old/awvq:shape=16x8:$old_v"
  "awvq 8x8=awvq:shape=8x8:$old/awvq:shape=8x8:$old_v"
  "awvq 4x10=awvq:shape=4x10:$old/awvq:shape=4x10:$old_v"
)
ours=(
  "budget:bits=2" "budget:bits=1.5" "budget:bits=1" "budget:bits=0.5" "awvq" "awvq:shape=8x8" "awvq:norm=1" "oscar-dc"
  "awvq old statistics=awvq:target=qqt-mass:importance=attention"
  "awvq old grouping=awvq:partition=volume"
  "budget old statistics=budget:bits=2:target=qqt-mass:importance=attention"
)
verify() { # file, options…
  local name=$1
  shift
  $bin/oscar-verify "$out/stats.h5" --end-to-end --model "$model" --positions 2048: --json "$out/$name.json" --csv "$out/$name.csv" --report "$out/$name.html" "$@"
}
methods() {
  for method in "$@"; do printf -- '--methods\n%s\n' "$method"; done
}
mapfile -t rows < <(methods "${reference[@]}")
verify reference --token-probes 6 "${rows[@]}"
mapfile -t rows < <(methods "${ours[@]}")
verify ours --no-baselines --token-probes 6 "${rows[@]}"
