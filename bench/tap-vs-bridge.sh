#!/usr/bin/env bash
# TCP between two network namespaces: through TAP ports of hayate, and through a Linux bridge
# between veth pairs. Alternates the two and prints each round, then medians and their ratio.
#
#   bench/tap-vs-bridge.sh [ROUNDS=5] [SECONDS=4]        needs root, iperf3, target/release/hayate
set -euo pipefail
rounds=${1:-5} seconds=${2:-4}
hayate=${HAYATE_BIN:-$(dirname "$0")/../target/release/hayate}
dir=$(mktemp -d)
left=hyb$$l right=hyb$$r bridge=hyb$$

cleanup() {
    [ -z "${daemon:-}" ] || { kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null; } || true
    for ns in $left $right; do
        ip netns pids $ns 2>/dev/null | xargs -r kill 2>/dev/null || true
        ip netns del $ns 2>/dev/null || true
    done
    ip link del $bridge 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT

ip netns add $left
ip netns add $right

# hayate: one TAP port in each namespace
"$hayate" daemon --run-dir "$dir" 2>"$dir/log" &
daemon=$!
for _ in $(seq 100); do
    "$hayate" --run-dir "$dir" network list >/dev/null 2>&1 && break
    sleep 0.05
done
"$hayate" --run-dir "$dir" network add n >/dev/null
"$hayate" --run-dir "$dir" port add l --network n --kind tap --ifname tap0 --netns $left >/dev/null
"$hayate" --run-dir "$dir" port add r --network n --kind tap --ifname tap0 --netns $right >/dev/null
ip -n $left address add 10.1.0.1/24 dev tap0
ip -n $right address add 10.1.0.2/24 dev tap0

# the bridge: one veth pair into each namespace
ip link add $bridge type bridge
ip link set $bridge up
for ns in $left $right; do
    ip link add v$ns type veth peer name veth0 netns $ns
    ip link set v$ns master $bridge up
    ip -n $ns link set veth0 up
done
ip -n $left address add 10.2.0.1/24 dev veth0
ip -n $right address add 10.2.0.2/24 dev veth0

ip netns exec $right iperf3 -s -D --pidfile "$dir/iperf.pid" >/dev/null
sleep 0.5
run() { # ADDRESS -> Gbit/s received
    ip netns exec $left iperf3 -c "$1" -t "$seconds" -J |
        awk '/"sum_received"/ {found=1} found && /bits_per_second/ {gsub(/[^0-9.e+]/, "", $2); printf "%.2f\n", $2 / 1e9; exit}'
}
median() { sort -n | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'; }

for round in $(seq "$rounds"); do
    a=$(run 10.1.0.2) b=$(run 10.2.0.2)
    echo "$a" >>"$dir/hayate"
    echo "$b" >>"$dir/bridge"
    echo "round $round: hayate TAP $a Gbit/s, Linux bridge $b Gbit/s"
done
a=$(median <"$dir/hayate") b=$(median <"$dir/bridge")
awk -v a="$a" -v b="$b" 'BEGIN {printf "median: hayate TAP %.2f Gbit/s, Linux bridge %.2f Gbit/s, ratio %.2f\n", a, b, a / b}'
