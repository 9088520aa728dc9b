#!/usr/bin/env bash
# Whether this machine's kernel lets a runtime run at all: kernel-can.sh bubblewrap|docker|apptainer. What can be
# installed is not its business. Where the kernel cannot, it says why and fails.
set -euo pipefail

cannot() {
    echo "$1"
    exit 1
}

try() { # WHAT COMMAND...
    local what=$1 said
    shift
    said=$("$@" 2>&1 >/dev/null) || cannot "$what: ${said:-refused}"
}

command -v unshare >/dev/null || exit 0 # nothing is known
case "${1:-}" in
bubblewrap | apptainer)
    try "no user namespaces" unshare --user --map-root-user --mount --net --pid --fork true
    ;;
docker)
    [ "$(id -u)" = 0 ] || exit 0 # its engine is root's
    try "no namespaces for containers" unshare --mount --net --ipc --uts --pid --fork true
    grep -q cgroup /proc/self/mounts || cannot "no cgroups are mounted"
    if command -v iptables >/dev/null; then
        try "no address translation for the engine's network" unshare --net iptables --table nat --list
    fi
    ;;
*)
    echo "usage: $0 bubblewrap|docker|apptainer" >&2
    exit 2
    ;;
esac
