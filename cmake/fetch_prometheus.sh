#!/bin/sh
# Unpacks Debian 12's Prometheus and promtool into a directory, for tests. The package is not
# installed: that would start it as a service of the machine.
#
# usage: cmake/fetch_prometheus.sh DEST
set -eu
# shellcheck source=cmake/fetching.sh
. "$(dirname "$0")/fetching.sh"

[ ! -e "${1-}/complete" ] || exit 0
make_directories "$@"

cd "$work"
apt_private update >&2 || fail "apt-get update failed: check the network and the apt sources"
apt_private download prometheus >&2 ||
  fail "apt-get download failed: the apt sources must hold Debian 12 (bookworm)"
dpkg-deb -x ./prometheus_*.deb "$dest"
touch "$dest/complete"
