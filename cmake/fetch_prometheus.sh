#!/bin/sh
# Unpacks Debian 12's Prometheus and promtool into a directory, for tests. The package is not
# installed: that would start it as a service of the machine. Uses a private copy of apt's package
# lists, so that nothing of the system changes.
#
# usage: cmake/fetch_prometheus.sh DEST
set -eu

fail() {
  echo "fetch_prometheus.sh: $*" >&2
  exit 1
}

[ $# -eq 1 ] || fail "usage: $0 DEST  (a directory; it is made when missing)"
[ ! -e "$1/complete" ] || exit 0
mkdir -p "$1"
dest=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
mkdir -p "$work/lists/partial"

apt_private() {
  apt-get -qq -oDir::State::Lists="$work/lists" -oDir::Cache::srcpkgcache="" \
    -oDir::Cache::pkgcache="" -oAPT::Sandbox::User="$(id -un)" "$@"
}

cd "$work"
apt_private update >&2 || fail "apt-get update failed: check the network and the apt sources"
apt_private download prometheus >&2 ||
  fail "apt-get download failed: the apt sources must hold Debian 12 (bookworm)"
dpkg-deb -x ./prometheus_*.deb "$dest"
touch "$dest/complete"
