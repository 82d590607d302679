#!/bin/sh
# Unpacks Debian 12's Prometheus and promtool into a directory, for tests. The package is not
# installed: that would start it as a service of the machine.
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
cd "$work"
apt-get -qq -oAPT::Sandbox::User="$(id -un)" download prometheus >&2 ||
  fail "apt-get download failed: the apt sources must hold Debian 12 (bookworm), and their lists be there (apt-get update)"
dpkg-deb -x ./prometheus_*.deb "$dest"
touch "$dest/complete"
