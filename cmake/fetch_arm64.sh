#!/bin/sh
# Unpacks the arm64 libraries that the engine and its tests link into a directory. The machine itself
# needs no foreign architecture for it.
#
# usage: cmake/fetch_arm64.sh DEST
set -eu
# shellcheck source=cmake/fetching.sh
. "$(dirname "$0")/fetching.sh"

packages="libabsl-dev libabsl20220623 libgmock-dev libgtest-dev libpcre2-dev libpcre2-8-0
  libprotobuf-dev libprotobuf32 libssl-dev libssl3 libutf8proc-dev libutf8proc2 libxxhash-dev zlib1g"

[ ! -e "${1-}/complete" ] || exit 0
make_directories "$@"
mkdir "$work/debs"

apt_arm64() {
  apt_private -oAPT::Architectures::=amd64 -oAPT::Architectures::=arm64 "$@"
}

cd "$work/debs"
apt_arm64 update >&2 || fail "apt-get update failed: check the network and the apt sources"
# Headers alone are of no architecture.
set -- nlohmann-json3-dev
for package in $packages; do set -- "$@" "$package:arm64"; done
apt_arm64 download "$@" >&2 ||
  fail "apt-get download failed: the apt sources must hold Debian 12 (bookworm)"
for deb in ./*.deb; do dpkg-deb -x "$deb" "$dest"; done
touch "$dest/complete"
