#!/usr/bin/env bash
# Compile the portable kernels with a compiler, run them on fixed inputs, compare with the bits that x86-64 gave:
#   tests/native/check.sh g++
#   tests/native/check.sh aarch64-linux-gnu-g++ qemu-aarch64
# Without a second word that can run it, it is compiled only.
set -euo pipefail
cd "$(dirname "$0")/../.."
compiler=$1 runner=${2-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# module.cpp needs Python, measure.cpp measures.
sources=(tests/native/selftest.cpp native/isa/unit_portable.cpp)
for file in native/*.cpp; do
  case $file in */module.cpp | */measure.cpp) ;; *) sources+=("$file") ;; esac
done
flags=(-std=c++20 -O2 -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror -pthread)
if [ -n "$runner" ]; then flags+=(-static); fi  # for a machine whose libraries are not here
"$compiler" "${flags[@]}" "${sources[@]}" -o "$work/selftest"
if [ -n "$runner" ] || [ "$("$compiler" -dumpmachine | cut -d- -f1)" = "$(uname -m)" ]; then
  $runner "$work/selftest" >"$work/found.txt"
  if [ "${UPDATE-}" = 1 ]; then cp "$work/found.txt" tests/native/expected.txt; fi
  diff tests/native/expected.txt "$work/found.txt"
  echo "$(wc -l <"$work/found.txt") results of $compiler: every bit as on x86-64"
else
  echo "compiled by $compiler; nothing here can run it"
fi
