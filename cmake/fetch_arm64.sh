#!/bin/sh
# Unpacks the arm64 libraries that the engine and its tests link into a directory. Uses a private
# copy of apt's package lists, so that the machine itself needs no foreign architecture.
#
# usage: cmake/fetch_arm64.sh DEST
set -eu

packages="libabsl-dev libabsl20220623 libgmock-dev libgtest-dev libpcre2-dev libpcre2-8-0
  libprotobuf-dev libprotobuf32 libssl-dev libssl3 libutf8proc-dev libutf8proc2 libxxhash-dev zlib1g"

fail() {
  echo "fetch_arm64.sh: $*" >&2
  exit 1
}

[ $# -eq 1 ] || fail "usage: $0 DEST  (a directory; it is made when missing)"
[ ! -e "$1/complete" ] || exit 0
mkdir -p "$1"
dest=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
mkdir -p "$work/lists/partial" "$work/debs"

apt_arm64() {
  apt-get -qq -oAPT::Architectures::=amd64 -oAPT::Architectures::=arm64 \
    -oDir::State::Lists="$work/lists" -oDir::Cache::srcpkgcache="" -oDir::Cache::pkgcache="" \
    -oAPT::Sandbox::User="$(id -un)" "$@"
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
