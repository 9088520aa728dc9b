
# Below here nothing depends on the options: it reads the variables above.
set -u
umask 077
nodes='' server='' submit='' stopped=''

# One task for each machine: its gateway nodes, restarted when they die, in a folder on a local disk. Its path is short,
# because unix sockets in it may have 107 bytes.
run_nodes() {
    local folder
    folder=$(mktemp -d "${POLAR_LOCAL}/polar-XXXXXX") || exit 2
    trap 'kill -TERM "$gateway" 2>/dev/null' TERM INT
    "$POLAR" --runs-dir "$folder" gateway --server "$POLAR_SERVER" --workers "$POLAR_WORKERS" --restart \
        --drain "$POLAR_DRAIN" ${POLAR_CONFIG:+--config "$POLAR_CONFIG"} &
    gateway=$!
    wait "$gateway"
    code=$?
    while kill -0 "$gateway" 2>/dev/null; do # a signal has ended the wait
        wait "$gateway"
        code=$?
    done
    rm -rf "$folder"
    exit "$code"
}

# The server is on the machine of this script. It writes its address when it listens.
start_server() {
    mkdir -p "$POLAR_STATE" || exit 2
    local address=$POLAR_STATE/address-$SLURM_JOB_ID host=${POLAR_HOST:-$(hostname --ip-address | cut -d' ' -f1)}
    rm -f "$address"
    (cd "$POLAR_STATE" && exec "$POLAR" server --host "$host" --port "$POLAR_PORT" --address-file "$address" \
        ${POLAR_CONFIG:+--config "$POLAR_CONFIG"}) &
    server=$!
    until [ -s "$address" ]; do
        [ -z "$stopped" ] || finish 0
        kill -0 "$server" 2>/dev/null || { wait "$server"; exit $?; }
        sleep 0.2
    done
    POLAR_SERVER=$(cat "$address")
    echo "rollout server at $POLAR_SERVER"
}

# With --wait, `polar submit` wants a node that lives.
submit_tasks() {
    until "$POLAR" nodes --json --server "$POLAR_SERVER" | grep --quiet '"alive": true'; do sleep 2; done
    exec "$POLAR" submit "$POLAR_TASKS" --wait --server "$POLAR_SERVER"
}

# Nodes first: they drain, or hand their sessions back to the server.
finish() {
    if [ -n "$nodes" ]; then
        while kill -0 "$nodes" 2>/dev/null; do
            scancel --quiet --signal=TERM "$SLURM_JOB_ID" # to the tasks, not to this script
            wait "$nodes" 2>/dev/null && break
        done
    fi
    [ -z "$submit" ] || kill -TERM "$submit" 2>/dev/null
    [ -z "$server" ] || { kill -TERM "$server" 2>/dev/null; wait "$server"; }
    exit "$1"
}

trap 'stopped=yes' TERM INT # the time limit is near (--signal), or `scancel --batch --signal=TERM`
[ -n "$POLAR_SERVER" ] || start_server
# Sessions and engines of this cluster are not behind the site's proxy.
host=${POLAR_SERVER#*://}
no_proxy=${no_proxy:+$no_proxy,}localhost,127.0.0.1,${host%%[:/]*}
NO_PROXY=$no_proxy
export no_proxy NO_PROXY POLAR POLAR_SERVER POLAR_WORKERS POLAR_DRAIN POLAR_CONFIG POLAR_LOCAL
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --label bash -c "$(declare -f run_nodes); run_nodes" &
nodes=$!
if [ -n "$POLAR_TASKS" ]; then
    submit_tasks &
    submit=$!
fi
wait -n $nodes $server $submit
code=$?
[ -z "$stopped" ] || code=0
finish "$code"
