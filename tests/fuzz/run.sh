#!/usr/bin/env bash
# Builds the fuzz targets with AddressSanitizer and UBSan into build/fuzz and gives each parser RUNS mutated inputs.
#   tests/fuzz/run.sh [RUNS (20000)] [PARSER…]
#   OSCAR_FUZZ_SEED   another seed than 1
#   OSCAR_FUZZ_JOBS   compile jobs (2)
# clang++ builds them for libFuzzer, which leaves what it learns in build/fuzz/corpus; g++ with a driver of its own. The
# input that fails is left as build/fuzz/crash-* (timeout-*, oom-*); mended, it goes into tests/fuzz/corpus/PARSER. Exit code 77: no compiler here has the sanitizers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

runs=${1:-20000}
shift || true
parsers=("$@")
((${#parsers[@]})) || parsers=(pt pickle safetensors safetensors_index gguf npy tokenizer_json config_json)

try=$(mktemp -d)
trap 'rm -rf "$try"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$try/fuzzer.cpp"
echo 'int main() {}' >"$try/plain.cpp"
if clang++ -fsanitize=fuzzer,address,undefined "$try/fuzzer.cpp" -o "$try/out" 2>/dev/null; then
  compiler=clang++ sanitize=fuzzer-no-link,address,undefined
elif g++ -fsanitize=address,undefined "$try/plain.cpp" -o "$try/out" 2>/dev/null && "$try/out"; then
  compiler=g++ sanitize=address,undefined
else
  echo "Skipped: neither clang++ nor g++ can build with -fsanitize=address,undefined here"
  exit 77
fi

log=build/fuzz.log
mkdir -p build
if ! { cmake --preset fuzz -DCMAKE_CXX_COMPILER=$compiler -DOSCAR_SANITIZE=$sanitize &&
  cmake --build build/fuzz --parallel "${OSCAR_FUZZ_JOBS:-2}" --target fuzz; } >"$log" 2>&1; then
  tail -n 25 "$log"
  exit 1
fi

corpus=$PWD/tests/fuzz/corpus
cd build/fuzz
code=0
for parser in "${parsers[@]}"; do
  learnt=()
  if [[ $compiler == clang++ ]]; then
    rm -rf "corpus/$parser"  # the same seed gives the same inputs
    mkdir -p "corpus/$parser"
    learnt=(-max_len=4096 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 "corpus/$parser")
  fi
  start=$SECONDS
  if bin/"fuzz_$parser" -runs="$runs" -seed="${OSCAR_FUZZ_SEED:-1}" "${learnt[@]}" "$corpus/$parser" >"$parser.log" 2>&1; then
    echo "$parser: $(grep -h '^Done ' "$parser.log" | tail -n 1), $((SECONDS - start)) s with start$(
      grep -o 'cov: [0-9]* ft: [0-9]*' "$parser.log" | tail -n 1 | sed 's/^/, /')"
  else
    code=1
    tail -n 40 "$parser.log"
    echo "$parser: FAILED, build/fuzz/$parser.log"
  fi
done
exit $code
