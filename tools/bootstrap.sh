#!/usr/bin/env bash
# Prepares a machine for `make`: checks what building needs, installs Debian packages when root
# (otherwise prints the exact command and stops), creates the venv, installs the pinned PyPI packages.
# Usage: tools/bootstrap.sh VENV [PYTHON]. Quick when nothing changed: a stamp in the venv carries
# the hash of the requirement files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${1:?usage: tools/bootstrap.sh VENV [PYTHON]}
wanted=${2:-}
stamp="$venv/.requirements-$(cat tools/requirements/*.txt tools/bootstrap.sh | sha256sum | cut -c1-16)"
[ -e "$stamp" ] && exit 0

say() { printf '[set-up] %s\n' "$*"; }
die() { printf '[set-up] error: %s\n' "$*" >&2; exit 1; }

# The first argument that runs and is CPython 3.10 to 3.14. Some systems put names into PATH that do
# not run, so each is tried.
find_python() {
  local candidate
  for candidate in "$@"; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  return 1
}

# Debian packages that are missing, by what they bring.
missing_packages() {
  command -v make >/dev/null || echo make
  command -v git >/dev/null || echo git
  command -v c++ >/dev/null || command -v g++ >/dev/null || echo g++
  command -v ccache >/dev/null || echo ccache
  [ -e /usr/include/gtest/gtest.h ] || echo libgtest-dev
  [ -e /usr/include/nlohmann/json.hpp ] || echo nlohmann-json3-dev
  [ -e /usr/include/pcre2.h ] || echo libpcre2-dev
  [ -e /usr/include/utf8proc.h ] || echo libutf8proc-dev
  [ -e /usr/include/gloo/algorithm.h ] || echo libgloo-dev
  if [ -n "$python" ]; then
    local short
    short=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$short-venv"
    local include
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
    [ -e "$include/Python.h" ] || echo "$short-dev"
  else
    echo python3 python3-venv python3-dev
  fi
}

# Work goes on without these; the message says what is lost.
optional_packages=" ccache libgloo-dev "

# Installs as root; otherwise stops with the command if something required is missing.
install_packages() {
  local package required="" optional=""
  for package in $(missing_packages); do
    if [[ "$optional_packages" == *" $package "* ]]; then optional+=" $package"; else required+=" $package"; fi
  done
  [ -n "$required$optional" ] || return 0
  local install="apt-get install -y --no-install-recommends"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "$install$required$optional"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || say "apt-get update failed; going on with the lists that are there"
    # shellcheck disable=SC2086
    [ -z "$required" ] || $install -qq $required >/dev/null
    for package in $optional; do
      $install -qq "$package" >/dev/null || say "$package could not be installed; going on without"
    done
    return 0
  fi
  local advice="sudo apt-get update && sudo $install$required$optional"
  if [ -n "$required" ]; then
    die "missing (Debian's names):$required. Run this, then make again:
    $advice"
  fi
  say "going on without$optional: ccache makes rebuilds faster, libgloo-dev brings Gloo to programs" \
    "without Python. To have them: $advice"
}

candidates=(python3 python3.12 python3.11 python3.13 python3.10 /usr/bin/python3)
[ -z "$wanted" ] || candidates=("$wanted")
python=$(find_python "${candidates[@]}" || true)
if [ -z "$python" ] && [ -n "$wanted" ]; then
  die "PYTHON=$wanted does not run or is not CPython 3.10 to 3.14; give the path of one that is"
fi
install_packages
[ -n "$python" ] || python=$(find_python "${candidates[@]}") ||
  die "no Python from 3.10 to 3.14 found; install one, or give its path: make PYTHON=/path/to/python3"

if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
  say "creating $venv with $python"
  "$python" -m venv "$venv"
fi
say "installing the pinned Python packages into $venv (torch alone needs 5 GB of disk): two to ten" \
  "minutes, by the network"
quiet=--quiet
[ ! -t 1 ] || quiet=  # a terminal shows pip's progress
for attempt in 1 2 3; do
  "$venv/bin/python" -m pip install $quiet --disable-pip-version-check \
    -r tools/requirements/build.txt -r tools/requirements/dev.txt && break
  [ "$attempt" != 3 ] || die "pip failed three times; its last lines above say why"
  say "pip failed, trying again"
  sleep 5
done
rm -f "$venv"/.requirements-*
touch "$stamp"
say "done: $venv"
