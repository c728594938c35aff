#!/bin/sh
# Builds the plug-in for mlir-opt 19: build.sh [OUTPUT], by default build/libkernelcast-mlir.so beside the product's folders.
# CXX, LLVM_PREFIX (/usr/lib/llvm-19) and CXXFLAGS are taken from the environment.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
output=${1:-$root/build/libkernelcast-mlir.so}
prefix=${LLVM_PREFIX:-/usr/lib/llvm-19}
compiler=${CXX:-g++}

missing() {
    echo "$1 is missing: install the package $2 (Debian: apt-get install $2), or set $3" >&2
    exit 1
}
command -v "$compiler" >/dev/null || missing "the C++ compiler $compiler" g++ CXX
[ -f "$prefix/include/mlir/Tools/Plugins/PassPlugin.h" ] || missing "$prefix/include/mlir" libmlir-19-dev LLVM_PREFIX
[ -f "$prefix/include/llvm/ADT/StringRef.h" ] || missing "$prefix/include/llvm" llvm-19-dev LLVM_PREFIX

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/__init__.py")
mkdir -p "$(dirname "$output")"
# Beside the output, so that the last step is a rename.
scratch=$(mktemp -d "$(dirname "$output")/.mlir-plugin.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# All files as one: most of the time goes into MLIR's headers, which are read once this way.
for source in "$here"/*.cpp; do
    printf '#include "%s"\n' "$source"
done >"$scratch/plugin.cpp"
sh "$here/device_aliases.sh" >"$scratch/device_aliases.inc"

# MLIR's own symbols stay open: mlir-opt provides them, and linking a second copy in would give every dialect two identities.
# shellcheck disable=SC2086 # CXXFLAGS is a list
"$compiler" -std=c++17 -O2 -fPIC -fno-rtti -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter ${CXXFLAGS:-} \
    "-DKERNELCAST_VERSION=\"$version\"" -isystem "$prefix/include" "-I$root/plugins/cpp" "-I$here" "-I$scratch" \
    -shared "$scratch/plugin.cpp" -o "$scratch/plugin.so"
# Moved into place whole: another process may be loading the old one.
mv "$scratch/plugin.so" "$output"
echo "$output"
