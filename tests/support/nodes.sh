#!/usr/bin/env bash
# Makes hosts on one machine, for tests across a network. Every node is a process in namespaces with a separate network, host
# name, /dev/shm and /etc/hosts; the node "switch" holds the bridge that joins them. The machine's network stays
# untouched, and the kernel removes everything when those processes end. Needs root, ip and tc (iproute2).
#   nodes.sh up A B [C ...]      nodes.sh down          state lies in $NODES_STATE
#   nodes.sh in NODE COMMAND...
#   nodes.sh mpirun ARGUMENT...  on the first node, whose launch agent (instead of ssh) is this script
#   nodes.sh pids NODE NAME      ids of the processes called NAME there
#   nodes.sh cut NODE            nodes.sh mend NODE     its cable
set -euo pipefail
export NODES_STATE=${NODES_STATE:?a folder for the state} # NODE.pid of each holder, the first node's name, hosts
script=$(readlink -f "${BASH_SOURCE[0]}")

into() {
    local holder
    holder=$(cat "$NODES_STATE/$1.pid")
    shift
    ${enter:-} nsenter --target "$holder" --net --uts --mount --ipc --wdns="$PWD" "$@"
}

hold() {
    setsid unshare --net --uts --mount --ipc sh -c "hostname $1 && mount -t tmpfs none /dev/shm &&
        mount --bind $NODES_STATE/hosts /etc/hosts && ip link set lo up && exec sleep infinity" </dev/null >"$NODES_STATE/$1.log" 2>&1 &
    local holder=$!
    echo $holder >"$NODES_STATE/$1.pid"
    until [[ $(cat /proc/$holder/comm 2>/dev/null) == sleep ]]; do
        if ! kill -0 $holder 2>/dev/null; then
            echo "node $1 cannot be made: $(cat "$NODES_STATE/$1.log")" >&2
            rm "$NODES_STATE/$1.pid" # the process id may be another one's by now
            exit 1
        fi
        sleep 0.02
    done
}

command=${1:-help}
[[ $# == 0 ]] || shift
case $command in
    up)
        mkdir -p "$NODES_STATE"
        echo "$1" >"$NODES_STATE/first"
        echo "127.0.0.1 localhost" >"$NODES_STATE/hosts"
        number=0
        for node in "$@"; do echo "10.77.0.$((number += 1)) $node" >>"$NODES_STATE/hosts"; done
        hold switch
        into switch sh -c "ip link add br0 type bridge && ip link set br0 up"
        number=0
        for node in "$@"; do
            hold "$node"
            into switch ip link add "to$node" type veth peer name eth0 netns "$(cat "$NODES_STATE/$node.pid")"
            into switch ip link set "to$node" master br0 up
            into "$node" sh -c "ip addr add 10.77.0.$((number += 1))/24 dev eth0 && ip link set eth0 up"
        done
        ;;
    down)
        for file in "$NODES_STATE"/*.pid; do
            [[ -e $file ]] || continue # no node has been made
            holder=$(cat "$file") # last: its namespaces tell what else runs there
            for entry in /proc/[0-9]*; do
                if [[ ${entry#/proc/} != "$holder" && $entry/ns/uts -ef /proc/$holder/ns/uts ]]; then kill -KILL "${entry#/proc/}" 2>/dev/null || true; fi
            done
            kill -KILL "$holder" || true
        done
        rm -r "$NODES_STATE"
        ;;
    in)
        enter=exec # a signal to this script, or the death of its parent, is then the command's
        into "$@"
        ;;
    pids)
        for id in $(pgrep -x "$2"); do
            if [[ /proc/$id/ns/uts -ef /proc/$(cat "$NODES_STATE/$1.pid")/ns/uts ]]; then echo "$id"; fi
        done
        ;;
    cut) into switch ip link set "to$1" down ;;
    mend) into switch ip link set "to$1" up ;;
    mpirun)
        into "$(cat "$NODES_STATE/first")" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
            OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent="$script agent" mpirun "$@"
        ;;
    agent) # as ssh: [OPTION]... NODE COMMAND..., called on another node
        while [[ $1 == -* ]]; do shift; done
        node=$1
        shift
        exec nsenter --target "$(cat "$NODES_STATE/$node.pid")" --net --uts --mount --ipc sh -c "$*"
        ;;
    *)
        sed -n '2,10s/^# \?//p' "$script"
        exit 64
        ;;
esac
