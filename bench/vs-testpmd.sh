#!/usr/bin/env bash
# One-way frames per second between two guests, hayate and dpdk-testpmd (io forwarding between two
# vhost ports) in turn, one core for the switch and one for the guests.
#
#   bench/vs-testpmd.sh [packed|split] [ROUNDS=5] [SIZES="64 1518"]
#
# Needs root, two CPUs with nothing else to do, target/release/hayate; installs DPDK's packages and
# reserves 1536 hugepages of 2 MiB while it runs. Frame size: bytes without virtio-net header and
# FCS. Each figure: the median of 6 windows of 100 ms in the regime in which the two CPUs share a
# cache (see vugen.c); "full" is how often the guest found its TX ring full: near 100 % the switch
# was the limit, far below it the generator. Within a round the guests of both switches have the same
# hugepages (files that stay): other pages alone can change the generator's rate by a tenth.
set -euo pipefail
rings=${1:-packed} rounds=${2:-5} sizes=${3:-64 1518}
here=$(dirname "$(readlink -f "$0")")
hayate=${HAYATE_BIN:-$here/../target/release/hayate}
case $rings in
    packed) options=packed_vq=1,mrg_rxbuf=1,in_order=1,vectorized=1 ;;
    split) options=packed_vq=0,mrg_rxbuf=1,in_order=0 ;;
    *) sed -n '2,5p' "$0"; exit 2 ;;
esac
switch_cpu=0 guest_cpu=1

command -v dpdk-testpmd >/dev/null && pkg-config --exists libdpdk ||
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y install dpdk dpdk-dev libdpdk-dev gcc pkg-config >/dev/null
dir=$(mktemp -d)
gcc -O3 -march=native -w -o "$dir/vugen" "$here/vugen.c" $(pkg-config --cflags --libs libdpdk) -lpthread

pages=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
pages_before=$(cat $pages)
[ "$pages_before" -ge 1536 ] || echo 1536 >$pages
mountpoint -q /dev/hugepages || { mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages; }

stop() { [ -z "${switch:-}" ] || { kill "$switch" 2>/dev/null && wait "$switch" 2>/dev/null; } || true; switch=; }
forget_pages() { rm -f /dev/hugepages/vsgen*; }
trap 'stop; forget_pages; echo "$pages_before" >$pages; rm -rf "$dir"' EXIT

start_hayate() {
    local run=(--run-dir "$dir/run")
    rm -rf "$dir/run"
    nice -n -20 "$hayate" daemon "${run[@]}" --cpus $switch_cpu 2>"$dir/log" &
    switch=$!
    for _ in $(seq 100); do "$hayate" "${run[@]}" network list >/dev/null 2>&1 && break; sleep 0.05; done
    "$hayate" "${run[@]}" network add n >/dev/null
    for i in 0 1; do
        "$hayate" "${run[@]}" port add p$i --network n --kind vhost --socket "$dir/v$i" >/dev/null
    done
    thread=worker-0
}
start_testpmd() {
    rm -f "$dir"/v? "$dir/in"
    mkfifo "$dir/in"
    (exec 9<>"$dir/in"
     exec nice -n -20 dpdk-testpmd -l $guest_cpu,$switch_cpu --main-lcore $guest_cpu --in-memory --no-pci -m 512 \
        --file-prefix sut --log-level='*:error' \
        --vdev net_vhost0,iface="$dir/v0",queues=1 --vdev net_vhost1,iface="$dir/v1",queues=1 \
        -- -i --nb-cores=1 --forward-mode=io --auto-start --total-num-mbufs=8192 --rxd=1024 --txd=1024 \
        --mbcache=256 --no-lsc-interrupt <&9 >"$dir/log" 2>&1) &
    switch=$!
    for _ in $(seq 100); do [ -S "$dir/v1" ] && break; sleep 0.1; done
    sleep 0.7
    thread=rte-worker-0
}
measure() { # SIZE -> "Mpps full%"
    local task device=()
    for task in /proc/$switch/task/*; do
        [ "$(cat "$task/comm")" != $thread ] || export SUTTID=$switch/task/$(basename "$task")
    done
    for i in 0 1; do
        device+=(--vdev "net_virtio_user$i,path=$dir/v$i,queues=1,queue_size=256,mac=02:00:00:00:00:0$([ $i = 0 ] && echo a || echo b),$options")
    done
    BUDGET=${BUDGET:-6} timeout 60 nice -n -20 "$dir/vugen" -l $guest_cpu --huge-unlink=never --no-pci -m 512 --single-file-segments \
        --file-prefix vsgen --log-level='*:error' "${device[@]}" -- -q 256 -m tput -s "$1" -w 6 -t 100 -W 500 2>/dev/null |
        sed -n 's/.*reg=ccx .*med=\([0-9.]*\).*txfull=\([0-9]*\)%.*/\1 \2/p'
}
median() { sort -n | awk '{v[NR] = $1} END {print NR ? (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 : 0}'; }
# WHAT SIZE: sets mpps and full; up to three times, if the CPUs moved apart
run() {
    local try
    for try in 1 2 3; do
        start_$1
        read -r mpps full < <(measure "$2") || true
        stop
        [ -z "${mpps:-}" ] || return 0
    done
}

for size in $sizes; do
    rm -f "$dir"/*."$size"
    for round in $(seq "$rounds"); do
        forget_pages
        mpps= full=
        run testpmd "$size"; theirs=$mpps theirs_full=$full mpps=
        run hayate "$size"
        echo "  $rings $size B, round $round: testpmd ${theirs:--} Mpps (full ${theirs_full:-?} %), hayate ${mpps:--} Mpps (full ${full:-?} %)"
        [ -n "$theirs" ] && [ -n "$mpps" ] || { echo "  no window of the regime: round does not count"; continue; }
        echo "$mpps" >>"$dir/hayate.$size"
        echo "$theirs" >>"$dir/testpmd.$size"
        awk -v a="$mpps" -v b="$theirs" 'BEGIN {print a / b}' >>"$dir/ratio.$size"
    done
    for what in hayate testpmd ratio; do touch "$dir/$what.$size"; done
    awk -v r="$rings" -v s="$size" -v a="$(median <"$dir/hayate.$size")" -v b="$(median <"$dir/testpmd.$size")" \
        -v q="$(median <"$dir/ratio.$size")" 'BEGIN {
        printf "%s %d B: hayate %.2f Mpps (%.1f Gbit/s), dpdk-testpmd %.2f Mpps, median ratio of a round %.2f\n", r, s, a, a * s * 8 / 1000, b, q}'
done
