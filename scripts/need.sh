#!/usr/bin/env bash
# Programs that must be here, each with the Debian package it comes in: `need.sh bwrap bubblewrap git git`. What is
# missing is installed with apt, as root or by sudo.
set -euo pipefail

missing=()
while [ $# -gt 0 ]; do
    # Programs of the system are not on everybody's PATH.
    if found=$(PATH="$PATH:/usr/sbin:/sbin:/usr/lib/podman" command -v "$1"); then
        echo "$2: $found is here"
    else
        missing+=("$2")
    fi
    shift 2
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "missing: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
command -v apt-get >/dev/null || { echo "missing: ${missing[*]}; there is no apt here to install them with" >&2; exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >"$log" 2>&1
}
# Lists that are there already may do; a fresh machine has none, an old one has stale ones.
if install "${missing[@]}" || { "${as_root[@]}" apt-get update >"$log" 2>&1 && install "${missing[@]}"; }; then
    echo "installed: ${missing[*]}"
else
    tail -n 15 "$log" >&2
    echo "apt-get could not install ${missing[*]}" >&2
    exit 1
fi
