#!/bin/sh
# pods: makes the three kinds of pods of `hayate bench --cells vf` in the guest.  A card is named by its MAC address.
#
#   pods bridge CARD PODS     pods with veth on a bridge, routed and filtered by the guest; rules: /etc/pods.rules
#   pods vf PF PODS CARD...   pods with a virtual VF each; rules, for the host: /etc/pods.flows
#   pods port CARD PODS       processes beside one another on a card
#
# Outside is 10.66.0.1.  Pods on the bridge are 10.77.0.10 and on, those with VFs 10.66.0.10 and on, the card by itself is
# 10.66.0.3.  In each of them a process serves UDP port 7000; of those on one card, 7000 and on.  Pods that have a policy
# serve port 9, too, which it allows nobody.
set -e

# The interface with a MAC address, which may come late.
card() {
    for _ in $(seq 100); do
        d=$(grep -l "$1" /sys/class/net/*/address | cut -d/ -f5)
        [ -n "$d" ] && echo "$d" && return
        sleep 0.1
    done
    echo "no interface has the address $1" >&2
    return 1
}
# The device of the guest channel.
channel() {
    for v in /sys/class/virtio-ports/*; do
        [ "$(cat "$v/name")" != org.hayate.0 ] || echo "/dev/${v##*/}"
    done
}
# serve NAMESPACE PORT: a process that serves
serve() {
    ip -n "$1" link set lo up
    ip netns exec "$1" pump serve "$2" >"/tmp/$1.$2" 2>&1 </dev/null &
}

kind=$1 first=$2 pods=$3
shift 3
case $kind in
bridge)
    d=$(card "$first")
    ip addr add 10.66.0.2/24 dev "$d"
    ip link set "$d" up
    ip link add cni0 type bridge
    ip addr add 10.77.0.1/24 dev cni0
    ip link set cni0 up
    echo 1 >/proc/sys/net/ipv4/ip_forward
    for p in $(seq "$pods"); do
        n=bridge$p
        ip netns add $n
        ip link add veth$p type veth peer name eth0 netns $n
        ip link set veth$p master cni0 up
        ip -n $n addr add 10.77.0.$((9 + p))/24 dev eth0
        ip -n $n link set eth0 up
        ip -n $n route add default via 10.77.0.1
        serve $n 7000
        serve $n 9
    done
    iptables-legacy-restore /etc/pods.rules
    iptables-legacy-save | grep -c '^-A'
    ;;
vf)
    d0=$(card "$first")
    ip link set "$d0" up
    echo "$pods" >"/sys/class/net/$d0/device/../sriov_numvfs"
    p=1
    for c; do
        n=vf$p d=$(card "$c")
        ip netns add $n
        ip link set "$d" netns $n name eth0
        ip -n $n addr add 10.66.0.$((9 + p))/24 dev eth0
        ip -n $n link set eth0 up
        serve $n 7000
        serve $n 9
        p=$((p + 1))
    done
    hayate-agent run --channel "$(channel)" >/tmp/agent 2>&1 </dev/null &
    for _ in $(seq 30); do
        hayate-agent flow replace "$d0" /etc/pods.flows 2>/tmp/flows && exit
        sleep 0.2
    done
    cat /tmp/flows /tmp/agent
    exit 1
    ;;
port)
    d=$(card "$first")
    ip netns add port
    ip link set "$d" netns port name eth0
    ip -n port addr add 10.66.0.3/24 dev eth0
    ip -n port link set eth0 up
    for p in $(seq "$pods"); do serve port $((6999 + p)); done
    ;;
esac
