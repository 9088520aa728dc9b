#!/bin/bash
# Apptainer for the `apptainer` runtime, in a folder of its own: scripts/install-apptainer.sh [PREFIX]
#
# Stable Debian has no package of it; the one of the unstable release needs a newer C library than the machine's.
# So its packages are unpacked under PREFIX (default /opt/apptainer), the library included, and the two programs
# are told to load that one. Nothing of it is installed into the system.
#
# The unstable release moves on: the packages are kept in POLAR_DEBS (default: debs in Polar's cache) and taken
# from there the next time. To get newer ones, empty that folder and remove PREFIX.
set -euo pipefail

prefix=$(realpath --canonicalize-missing -- "${1:-/opt/apptainer}")
debs=${POLAR_DEBS:-${POLAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/polar}/debs}
libraries=usr/lib/x86_64-linux-gnu
programs=(usr/bin/apptainer "$libraries/apptainer/bin/starter")
packages=(apptainer libc6 libseccomp2 libsqlite3-0)
# What Apptainer calls: to build an image file, to mount one, to lay a layer over it. From the machine's own release.
called=(mksquashfs:squashfs-tools squashfuse:squashfuse fuse-overlayfs:fuse-overlayfs newuidmap:uidmap)

fail() {
  echo "apptainer: $*" >&2
  exit 1
}

quietly() { # COMMAND...: its output only when it fails
  "$@" >"$scratch/log" 2>&1 || {
    tail -n 5 "$scratch/log" >&2
    return 1
  }
}

install_missing() { # PROGRAM:PACKAGE...
  local pair missing=()
  for pair in "$@"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  [ ${#missing[@]} -eq 0 ] && return
  [ "$(id -u)" = 0 ] || fail "only root can install what is missing: apt-get install ${missing[*]}"
  echo "apptainer: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  quietly apt-get update && quietly apt-get install --yes --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install ${missing[*]}"
}

newest() { # PACKAGE: its file in the cache
  find "$debs" -maxdepth 1 -name "$1_*.deb" 2>/dev/null | sort --version-sort | tail -n 1
}

are_cached() {
  local package
  for package in "${packages[@]}"; do [ -n "$(newest "$package")" ] || return 1; done
}

download() { # from the mirror the machine uses, with lists of its own: the system never sees the unstable release
  local example mirror options
  example=$(apt-get download --print-uris base-files 2>/dev/null) ||
    fail "apt knows no packages: run apt-get update as root first"
  mirror=${example#\'}
  mirror=${mirror%%/pool/*}
  mkdir -p "$scratch/lists/partial" "$scratch/archives/partial" "$debs"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$scratch/sources"
  options=(
    -o "Dir::Etc::SourceList=$scratch/sources" -o Dir::Etc::SourceParts=- -o Dir::Etc::PreferencesParts=-
    -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch" -o Acquire::Languages=none
    -o Acquire::Check-Valid-Until=false # a mirror that stands still is signed all the same
    -o APT::Sandbox::User=root
  )
  echo "apptainer: downloading ${packages[*]}"
  quietly apt-get "${options[@]}" --error-on=any update || fail "the mirror does not offer Debian's unstable release"
  (cd "$debs" && quietly apt-get "${options[@]}" download "${packages[@]}") ||
    fail "the mirror does not offer ${packages[*]}"
}

assemble() { # FOLDER: what PREFIX is going to be
  local package program
  for package in "${packages[@]}"; do
    dpkg-deb --extract "$(newest "$package")" "$1" || fail "$(newest "$package") is damaged: remove it"
    dpkg-deb --show "$(newest "$package")" >>"$1/versions.txt"
  done
  for program in "${programs[@]}"; do
    patchelf --set-interpreter "$prefix/$libraries/ld-linux-x86-64.so.2" \
      --force-rpath --set-rpath "$prefix/$libraries" "$1/$program" ||
      fail "$program of the package cannot be changed: its layout may be new"
  done
  # Both programs look for their settings beside the folder they find themselves in.
  ln -s ../etc ../var "$1/usr/"
  ln -s ../../etc ../../var "$1/usr/lib/"
}

open_fuse() {
  if [ ! -c /dev/fuse ]; then
    echo "apptainer: there is no /dev/fuse here: image files cannot be used, folders can" >&2
  elif [ "$(id -u)" = 0 ]; then
    chmod 666 /dev/fuse
  elif [ ! -w /dev/fuse ]; then
    echo "apptainer: image files need /dev/fuse, folders do not; as root: chmod 666 /dev/fuse" >&2
  fi
}

[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || fail "this works on Debian and amd64 only"
scratch=$(mktemp -d)
stage=
trap 'rm -rf "$scratch" ${stage:+"$stage"}' EXIT

install_missing "${called[@]}"
if ! version=$("$prefix/usr/bin/apptainer" --version 2>/dev/null); then
  [ ! -e "$prefix" ] || [ -e "$prefix/versions.txt" ] || fail "$prefix is there and not ours: remove it"
  mkdir -p "$(dirname "$prefix")" 2>/dev/null && [ -w "$(dirname "$prefix")" ] ||
    fail "$(dirname "$prefix") cannot be written to: run this as root, or name another folder"
  install_missing patchelf:patchelf
  are_cached || download
  stage=$(mktemp -d "$prefix.XXXXXX")
  chmod 755 "$stage"
  assemble "$stage"
  rm -rf "$prefix"
  mv -T "$stage" "$prefix"
  version=$("$prefix/usr/bin/apptainer" --version) || fail "it does not start: remove $debs and $prefix, try again"
fi
open_fuse
echo "$version in $prefix"
