#!/bin/sh
# Downloads the SentencePiece 0.1.97 source archive of Debian 12 into a directory and checks its
# SHA-256. Uses a private copy of the machine's own apt sources (binary lists turned into source
# lists), so that nothing of the system changes.
#
# usage: cmake/fetch_sentencepiece.sh DEST
set -eu

archive=sentencepiece_0.1.97.orig.tar.gz
sha256=56430381f45dc6debfd2e0cbde4f039f9499c49ca825af184b0cbf318c17a18f

fail() {
  echo "fetch_sentencepiece.sh: $*" >&2
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
mkdir -p "$work/parts" "$work/lists/partial" "$work/source"

for list in /etc/apt/sources.list.d/*.sources; do
  [ -f "$list" ] || continue
  sed 's/^Types:.*/Types: deb-src/' "$list" >"$work/parts/$(basename "$list")"
done
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ -f "$list" ] || continue
  sed -n 's/^deb[[:space:]]/deb-src /p' "$list" >"$work/parts/$(basename "$list" .list).list"
done

apt_source() {
  apt-get -qq -oDir::Etc::sourcelist=/dev/null -oDir::Etc::sourceparts="$work/parts" \
    -oDir::State::Lists="$work/lists" -oDir::Cache::srcpkgcache="" -oDir::Cache::pkgcache="" \
    -oAPT::Sandbox::User="$(id -un)" "$@"
}

cd "$work/source"
apt_source update >&2 || fail "apt-get update failed: check the network and the apt sources"
apt_source source --download-only sentencepiece=0.1.97-3 >&2 ||
  apt_source source --download-only sentencepiece >&2 ||
  fail "apt-get source sentencepiece failed: the apt sources must hold Debian 12 (bookworm) main"
[ -f "$archive" ] || fail "apt delivered no $archive: version 0.1.97 of Debian 12 is needed"
matches "$archive" || fail "$archive has a wrong SHA-256 (expected $sha256): not used"
mv "$archive" "$dest/$archive"
echo "$dest/$archive"
