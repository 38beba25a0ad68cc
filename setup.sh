#!/usr/bin/env bash
# From a fresh clone on Debian or Ubuntu to built tools. Safe to run again: what is there is left alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'TEXT'
Usage: ./setup.sh [options]

Installs missing Debian packages (with sudo unless root), puts a CPU LibTorch into .deps/libtorch, builds into
build/release. A second run takes seconds.

Options:
  --cuda          for a GPU: a LibTorch with CUDA (about 3 GB to download) and the GPU kernels (needs nvcc 13), built into
                  build/cuda
  --no-build      stop before configuring and building
  --python PATH   the Python whose pip downloads LibTorch (default: python3, then /usr/bin/python3)
  --jobs N        compile jobs (default: one a core, but no more than one a GiB of memory)
  --help          this text

LibTorch is not downloaded when OSCAR_TORCH_DIR or CMAKE_PREFIX_PATH already leads to one.
TEXT
}

torch_version=2.11.0
packages=(g++ cmake ninja-build ccache pkg-config unzip ca-certificates python3 python3-pip libhdf5-dev libeigen3-dev
  libfmt-dev libcli11-dev libgtest-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev zlib1g-dev)

build=yes python='' jobs='' preset=release
while (($#)); do
  case $1 in
    --cuda) preset=cuda ;;
    --no-build) build=no ;;
    --python) python=${2:?--python needs a path}; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    --help | -h) usage; exit 0 ;;
    *) echo "setup.sh: unknown option '$1'; ./setup.sh --help lists them" >&2; exit 2 ;;
  esac
  shift
done

mkdir -p .deps/log
exec 9>.deps/lock
flock 9  # two set-ups of one checkout take turns
partial=''
trap 'if [[ -n $partial ]]; then rm -rf "$partial"; fi' EXIT

fail() { # message, command that mends it
  echo "setup.sh: $1" >&2
  [[ -z ${2-} ]] || printf 'To mend it:\n  %s\nthen run ./setup.sh again.\n' "$2" >&2
  exit 1
}
step() { # title, log name, what to run after a failure, command…
  local title=$1 log=.deps/log/$2.log mend=$3 start=$SECONDS
  shift 3
  echo "==> $title"
  if ! "$@" >"$log" 2>&1 9>&-; then
    echo "--- last lines of $log" >&2
    tail -n 25 "$log" >&2
    echo "---" >&2
    fail "failed after $((SECONDS - start)) s: $title" "$mend"
  fi
  echo "    done in $((SECONDS - start)) s"
}
have() { echo "==> $1: already there"; }

if [[ $preset == cuda && $build == yes ]]; then
  CUDACXX=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || fail "no nvcc: the GPU kernels need the CUDA toolkit 13" "export PATH=/path/to/cuda/bin:\$PATH"
  export CUDACXX
fi

# 1. Debian packages
as_root=()
((EUID == 0)) || as_root=(sudo)
apt_install() {
  "${as_root[@]}" apt-get update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}
if command -v dpkg-query apt-get >/dev/null; then
  missing=()
  for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) == "install ok installed" ]] || missing+=("$package")
  done
  if ((${#missing[@]})); then
    line="${as_root[*]} apt-get update && ${as_root[*]} apt-get install -y ${missing[*]}"
    ((EUID == 0)) || command -v sudo >/dev/null || fail "packages are missing and there is no sudo" "apt-get install -y ${missing[*]}   # as root"
    step "Installing ${#missing[@]} Debian packages: ${missing[*]}" apt "${line# }" apt_install "${missing[@]}"
  else
    have "Debian packages"
  fi
else
  echo "==> No apt-get here: packages are not checked; CMake will name what it misses (${packages[*]})"
fi

# 2. LibTorch
torch_in() { # directory: is it a LibTorch, or a site-packages that has one?
  local dir
  for dir in "$1" "$1/torch"; do
    [[ -f $dir/include/ATen/ATen.h && -f $dir/lib/libtorch_cpu.so ]] || continue
    [[ $preset != cuda || -f $dir/lib/libtorch_cuda.so ]] && return 0
  done
  return 1
}
torch_found() {
  local dir
  for dir in ${CMAKE_PREFIX_PATH//[:;]/ }; do
    torch_in "$dir" && echo "$dir" && return 0
  done
  torch_in .deps/libtorch && echo .deps/libtorch
}
find_pip() {
  local candidate
  for candidate in ${python:-python3 /usr/bin/python3}; do
    "$candidate" -m pip --version >/dev/null 2>&1 && python=$candidate && return 0
  done
  return 1
}
# The PyPI wheels hold a whole Python package; what C++ needs of them is the headers, three libraries and the CUDA runtime
# that libtorch_cpu.so was linked with (never used on a CPU, but the loader wants it). The wheel of any Python will do.
fetch_torch() { # destination
  local tag wheel platforms=()
  if [[ $preset == cuda ]]; then  # with the CUDA libraries that it names as its needs
    TMPDIR=$1 "$python" -m pip install --target "$1" --disable-pip-version-check --no-compile "torch==$torch_version"
    return
  fi
  for tag in manylinux_2_{28,27,26,25,24,17} manylinux2014; do platforms+=(--platform "${tag}_$(uname -m)"); done
  TMPDIR=$1 "$python" -m pip download --no-deps --dest "$1/wheels" --disable-pip-version-check --only-binary=:all: \
    --implementation cp --python-version 3.11 "${platforms[@]}" \
    "torch==$torch_version" 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-cupti>=13,<14' || return 1
  for wheel in "$1"/wheels/torch-*.whl; do
    unzip -q "$wheel" 'torch/include/*' 'torch/lib/libtorch_cpu.so' 'torch/lib/libc10.so' 'torch/lib/libgomp*' 'torch-*/licenses/*' -d "$1" || return 1
  done
  for wheel in "$1"/wheels/nvidia*.whl; do
    unzip -q "$wheel" 'nvidia/*/lib/libcu*.so*' '*/licenses/*' -d "$1" || return 1
  done
  rm -rf "$1/wheels"
}
if [[ -n ${OSCAR_TORCH_DIR-} ]]; then
  torch_in "$OSCAR_TORCH_DIR" || fail "OSCAR_TORCH_DIR=$OSCAR_TORCH_DIR has no include/ATen/ATen.h and lib/libtorch_cpu.so$([[ $preset != cuda ]] || echo ', or no lib/libtorch_cuda.so')" "unset OSCAR_TORCH_DIR   # or point it at a LibTorch"
  have "LibTorch in OSCAR_TORCH_DIR ($OSCAR_TORCH_DIR)"
elif where=$(CMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH-} torch_found); then
  have "LibTorch in $where"
else
  find_pip || fail "no Python with pip (tried: ${python:-python3 /usr/bin/python3})" "${as_root[*]} apt-get install -y python3-pip"
  rm -rf .deps/libtorch.partial.*  # of a run that was killed
  partial=$(mktemp -d .deps/libtorch.partial.XXXXXX)
  size=0.5
  [[ $preset != cuda ]] || size=3
  step "Downloading LibTorch $torch_version from PyPI (about $size GB)" torch "$python -m pip download --no-deps torch==$torch_version   # is PyPI reachable? is the disk full?" fetch_torch "$partial"
  torch_in "$partial" || fail "the torch wheel has not the files that were expected of it" "export OSCAR_TORCH_DIR=/path/to/libtorch"
  rm -rf .deps/libtorch
  chmod 755 "$partial"  # mktemp gives 700
  mv "$partial" .deps/libtorch
  partial=''
fi
[[ $build == yes ]] || exit 0

# 3. Build
if [[ -z $jobs ]]; then
  jobs=$(nproc)
  memory=$(awk '/^MemTotal/ {print int($2 / 1048576) + 1}' /proc/meminfo)
  ((jobs <= memory)) || jobs=$memory
fi
cmake_options=()
[[ -z ${OSCAR_TORCH_DIR-} ]] || cmake_options+=("-DOSCAR_TORCH_DIR=$(realpath "$OSCAR_TORCH_DIR")")
step "Configuring build/$preset" configure "rm -rf build/$preset   # then look at the message above" cmake --preset "$preset" "${cmake_options[@]}"
step "Building with $jobs jobs (minutes the first time)" build "cmake --build --preset $preset -j1   # shows the first error alone" cmake --build --preset "$preset" "-j$jobs"
echo "Tools are in build/$preset/bin. Next: examples/quickstart.sh, or tests/run.sh"
