#!/usr/bin/env bash
# The four tools, one after the other, on a small model and the text of examples/text.txt: set-up, model and results in
# minutes on two cores. Everything is written to out/ (or the folder given as the first argument).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-out}

./setup.sh
model=$(examples/get_model.sh)
bin=build/release/bin
mkdir -p "$out"

show() { # title, command…
  echo
  echo "# $1"
  shift
  echo "\$ $*"
  "$@"
}

show "1. Run the model over the text; keep what attention does with Q, K and V as second moments" \
  $bin/oscar-dump --model "$model" --text examples/text.txt --seq-len 1024 --probes 4 --restart -o "$out/stats.h5"

show "2. Fit one rotation a layer for keys and for values" \
  $bin/oscar-fit "$out/stats.h5" --method oscar -o "$out/rotations"

show "3. Search the clip ratios on two of the held-out sequences" \
  $bin/oscar-clip "$out/stats.h5" --rotations "$out/rotations" --positions 512: -o "$out/rotations/clip.json"

show "4. Measure what each layer loses on the other two, from packed 2-bit codes" \
  $bin/oscar-verify "$out/stats.h5" --rotations "$out/rotations" --clip "$out/rotations/clip.json" --positions 512: --json "$out/report.json"

cat <<TEXT

Written:
  $out/stats.h5               second moments, sampled rows and held-out sequences
  $out/rotations/*.pt         what a serving engine loads (manifest.json says what made them)
  $out/rotations/clip.json    clip ratios
  $out/report.json            the report: every layer, every row
TEXT
