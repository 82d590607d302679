#!/bin/sh
# Downloads the source archive of xgrammar from PyPI into a directory and checks its SHA-256.
#
# usage: cmake/fetch_xgrammar.sh DEST
set -eu
# shellcheck source=cmake/fetching.sh
. "$(dirname "$0")/fetching.sh"

version=0.2.8
archive=xgrammar-$version.tar.gz
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80

make_directories "$@"
end_if_there "$archive" "$sha256"
python3 -m pip download --quiet --no-deps --no-binary xgrammar --dest "$work" "xgrammar==$version" >&2 ||
  fail "pip cannot download xgrammar $version: check the network and pip's package index"
deliver "$work/$archive" "$sha256" "pip delivered no $archive"
