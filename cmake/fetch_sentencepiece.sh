#!/bin/sh
# Downloads the SentencePiece 0.1.97 source archive of Debian 12 into a directory and checks its
# SHA-256. Uses the machine's own apt sources, binary lists turned into source lists.
#
# usage: cmake/fetch_sentencepiece.sh DEST
set -eu
# shellcheck source=cmake/fetching.sh
. "$(dirname "$0")/fetching.sh"

archive=sentencepiece_0.1.97.orig.tar.gz
sha256=56430381f45dc6debfd2e0cbde4f039f9499c49ca825af184b0cbf318c17a18f

make_directories "$@"
end_if_there "$archive" "$sha256"
mkdir -p "$work/parts" "$work/source"

for list in /etc/apt/sources.list.d/*.sources; do
  [ -f "$list" ] || continue
  sed 's/^Types:.*/Types: deb-src/' "$list" >"$work/parts/$(basename "$list")"
done
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ -f "$list" ] || continue
  sed -n 's/^deb[[:space:]]/deb-src /p' "$list" >"$work/parts/$(basename "$list" .list).list"
done

apt_source() {
  apt_private -oDir::Etc::sourcelist=/dev/null -oDir::Etc::sourceparts="$work/parts" "$@"
}

cd "$work/source"
apt_source update >&2 || fail "apt-get update failed: check the network and the apt sources"
apt_source source --download-only sentencepiece=0.1.97-3 >&2 ||
  apt_source source --download-only sentencepiece >&2 ||
  fail "apt-get source sentencepiece failed: the apt sources must hold Debian 12 (bookworm) main"
deliver "$work/source/$archive" "$sha256" "apt delivered no $archive: version 0.1.97 of Debian 12 is needed"
