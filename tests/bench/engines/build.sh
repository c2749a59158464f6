#!/bin/bash
# Build the adapters of engines whose sources are in .peers/engines, each at the commit that is checked out.
# usage: tests/bench/engines/build.sh (in the checkout)
set -u
here=$(dirname "$0") out=.peers/engines

build() { # NAME SOURCES FLAGS...: what does not build is named, and the others go on
    local name=$1 sources=$out/$2 commit
    shift 2
    [ -d "$sources" ] || { echo "$name: no sources in $sources"; return; }
    commit=$(git -C "$sources" rev-parse --short HEAD)
    g++ -O3 -march=native -w -pthread -DCOMMIT="\"$commit\"" -DCOMMIT_ID="$commit" -I"$here" -I"$sources" \
        -o "$out/$name" "$here/$name.cpp" "$@" && echo "$name: built from $commit"
}

build nneonneo nneonneo-2048-ai
build macroxue macroxue-2048-ai $out/macroxue-2048-ai/board.cc
build moporgic moporgic-TDL2048 -std=c++20
build moporgic_values moporgic-TDL2048 -std=c++20
build ziap ziap-2048-tdl -std=c++17 -I$out/ziap-2048-tdl/src
src=$out/aszczepanski-2048/src
build aszczepanski aszczepanski-2048 -I$src $src/common/*.cpp $src/eval/*.cpp \
    $src/io/{Binary,Text}InputFileReader.cpp $src/main/WebApi.cpp # needs Boost's headers
