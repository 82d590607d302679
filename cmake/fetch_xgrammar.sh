#!/bin/sh
# Downloads the source archive of xgrammar from PyPI into a directory and checks its SHA-256.
#
# usage: cmake/fetch_xgrammar.sh DEST
set -eu

version=0.2.8
archive=xgrammar-$version.tar.gz
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80

fail() {
  echo "fetch_xgrammar.sh: $*" >&2
  exit 1
}

matches() {
  echo "$sha256  $1" | sha256sum --check --status
}

[ $# -eq 1 ] || fail "usage: $0 DEST  (a directory; it is made when missing)"
mkdir -p "$1"
dest=$(cd "$1" && pwd)

if [ -f "$dest/$archive" ] && matches "$dest/$archive"; then
  echo "$dest/$archive"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
python3 -m pip download --quiet --no-deps --no-binary xgrammar --dest "$work" "xgrammar==$version" >&2 ||
  fail "pip cannot download xgrammar $version: check the network and pip's package index"
[ -f "$work/$archive" ] || fail "pip delivered no $archive"
matches "$work/$archive" || fail "$archive has a wrong SHA-256 (expected $sha256): not used"
mv "$work/$archive" "$dest/$archive"
echo "$dest/$archive"
