# What the fetch scripts share. They read it with `.` and are called with one argument, DEST.
# shellcheck shell=sh

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# Makes DEST and a directory to work in, which goes with the script: $dest, $work.
make_directories() {
  [ $# -eq 1 ] || fail "usage: $0 DEST  (a directory; it is made when missing)"
  mkdir -p "$1"
  dest=$(cd "$1" && pwd)
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT INT TERM
}

# apt-get with package lists of its own, so that nothing of the system changes.
apt_private() {
  mkdir -p "$work/lists/partial"
  apt-get -qq -oDir::State::Lists="$work/lists" -oDir::Cache::srcpkgcache="" \
    -oDir::Cache::pkgcache="" -oAPT::Sandbox::User="$(id -un)" "$@"
}

# matches FILE SHA256
matches() {
  echo "$2  $1" | sha256sum --check --status
}

# end_if_there ARCHIVE SHA256: ends the script, which says where the archive is, if DEST has it.
end_if_there() {
  if [ -f "$dest/$1" ] && matches "$dest/$1" "$2"; then
    echo "$dest/$1"
    exit 0
  fi
}

# deliver FILE SHA256 WHY_MISSING: checks an archive and moves it to DEST.
deliver() {
  [ -f "$1" ] || fail "$3"
  matches "$1" "$2" || fail "$(basename "$1") has a wrong SHA-256 (expected $2): not used"
  mv "$1" "$dest/"
  echo "$dest/$(basename "$1")"
}
