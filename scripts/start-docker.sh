#!/usr/bin/env bash
# Starts a Docker Engine where none answers, for a machine without a service manager: detached, its log and process id
# kept. `stop` ends the one that was started here and no other.
set -euo pipefail

state="${POLAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/polar}/docker"
pid_file="$state/dockerd.pid"
log="$state/dockerd.log"
address="${DOCKER_HOST:-unix:///var/run/docker.sock}"
wait_s=30

answers() {
    python3 - "${address#unix://}" 2>/dev/null <<'PING'
import http.client, socket, sys
ping = http.client.HTTPConnection("docker")
ping.sock = socket.socket(socket.AF_UNIX)
ping.sock.settimeout(5)
ping.sock.connect(sys.argv[1])
ping.request("GET", "/_ping")
sys.exit(ping.getresponse().status != 200)
PING
}

# When a process began, which tells it from a later one of the same id; nothing for one that is gone.
began() {
    local rest
    rest=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    read -ra rest <<<"${rest##*) }"
    [ "${rest[0]}" != Z ] && echo "${rest[19]}"
}

# The process that was started here, if it still runs.
ours() {
    local pid at
    read -r pid at 2>/dev/null <"$pid_file" || return 1
    [ -n "$at" ] && [ "$(began "$pid")" = "$at" ] && echo "$pid"
}

stop() {
    local pid
    pid=$(ours) || { echo "docker: nothing to stop, none was started here"; return; }
    kill "$pid"
    for _ in $(seq $((wait_s * 5))); do
        ours >/dev/null || { rm -f "$pid_file"; echo "docker: stopped (process $pid)"; return; }
        sleep 0.2
    done
    echo "docker: process $pid does not end; see $log" >&2
    exit 1
}

start() {
    local pid
    case "$address" in
    unix://*) ;;
    *) echo "docker: DOCKER_HOST names an engine elsewhere, $address; there is nothing to start"; return ;;
    esac
    if answers; then
        echo "docker: an engine answers at $address"
        return
    fi
    command -v dockerd >/dev/null || { echo "docker: there is no dockerd; \`make docker\` installs it" >&2; exit 1; }
    mkdir -p "$state"
    if ! pid=$(ours); then
        setsid nohup dockerd >"$log" 2>&1 </dev/null &
        pid=$!
        echo "$pid $(began "$pid")" >"$pid_file"
    fi
    for _ in $(seq $((wait_s * 5))); do
        if answers; then
            echo "docker: started (process $pid, log $log)"
            return
        fi
        ours >/dev/null || break
        sleep 0.2
    done
    echo "docker: the engine did not come up; the end of $log:" >&2
    tail -n 5 "$log" >&2
    [ "$(id -u)" = 0 ] || echo "docker: it needs root: sudo $0" >&2
    if pid=$(ours); then kill "$pid"; fi
    rm -f "$pid_file"
    exit 1
}

case "${1:-start}" in
start) start ;;
stop) stop ;;
*)
    echo "usage: $0 [start|stop]" >&2
    exit 2
    ;;
esac
