#!/bin/bash
# setup.sh: everything the tests and the demo need besides hayate itself.
#
#   1. Debian packages, by apt-get, only those that are missing (needs root).
#   2. A QEMU with virtual functions: the system's if it is 10.1 or newer, else one unpacked into the build folder.
#      Debian 12's 7.2 dies by SIGSEGV with vhost-user and MSI-X under TCG too.
#   3. A Debian kernel for the guests, unpacked to the vmlinux that boots about a second faster, and its modules.
#   4. An initramfs with the few programs the tests run inside a guest.
#   5. A disk that boots: GRUB, the kernel, and the same programs with fio.
#   6. A second kernel, which has RDMA, unlike the one for clouds, and an initramfs for it.
#   7. An initramfs with what containers on a bridge need: veth, bridge, iptables.
#   8. cnitool, with which the CNI project runs plugins. Debian has none: Go builds it, from modules it fetches itself.
#
#   9. libfabric 2, with which the tests of remote memory access run once more. Debian 12 has 1.17: it is built from
#      the source of Debian 13, whose package asks for a newer C library. Autotools come as packages, too.
#
# 2 to 9 install nothing on the machine: packages are fetched with a private apt state from the archive that the
# machine's own apt configuration names, and unpacked below $BUILD_DIR (default: build/ at the top of the source tree).
# Everything is kept there under a stamp of what it was made from; a second run only looks at the stamps.
# The result is $BUILD_DIR/guest/env: QEMU=, KERNEL=, KERNEL_VERSION=, INITRD=, DISK=, RDMA_KERNEL=, RDMA_INITRD=,
# PODS_INITRD=, CNITOOL= (nothing when it could not be built: where modules of Go cannot be fetched, the rest still runs).
# libfabric is $BUILD_DIR/libfabric/lib, for a link from target/lib/hayate or LD_LIBRARY_PATH, and its version is beside: none
# when it could not be built.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
BUILD_DIR=${BUILD_DIR:-$(readlink -f "$here/../..")/build}
GUEST_SUITES=${GUEST_SUITES:-trixie}              # kernel and programs of the guests
QEMU_SUITES=${QEMU_SUITES:-trixie-backports,trixie}
RDMA_SUITES=${RDMA_SUITES:-bookworm}              # the kernel with RDMA
FABRIC_SUITE=${FABRIC_SUITE:-trixie}              # the other libfabric
mkdir -p "$BUILD_DIR/guest"
BUILD_DIR=$(readlink -f "$BUILD_DIR")
g=$BUILD_DIR/guest
export BUILD_DIR
# One at a time: two cargo tests started together share the folder.
exec 9>"$g/.lock"
flock 9

say() { printf '  \033[2m%s\033[0m %s\n' setup "$*"; }
[ -t 1 ] || say() { printf '  setup %s\n' "$*"; }
# stamp FILE WORD...: true when FILE was made from these words and from these scripts
stamp() { local f=$1; shift; [ "$(cat "$f" 2>/dev/null)" = "$*" ]; }
sum() { cat "$@" | sha256sum | cut -c1-16; }

# --- 1. packages of the machine --------------------------------------------------------------------------------------
packages=(dpdk dpdk-dev qemu-utils qemu-system-common iperf3 ethtool iproute2 iptables iputils-ping nftables procps socat strace tcpdump traceroute
          cpio zstd lz4 xz-utils kmod binutils e2fsprogs valgrind
          libfabric-dev ibverbs-providers libibverbs-dev librdmacm-dev pkg-config
          ceph-mon ceph-osd ceph-common librbd-dev librados-dev gfmd gfsd gfarm-client libgfarm-dev
          containernetworking-plugins)
missing=()
for p in "${packages[@]}"; do
    [ -e "/var/lib/dpkg/info/$p.list" ] || [ -e "/var/lib/dpkg/info/$p:amd64.list" ] || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || { echo "setup: as root, please: these packages are missing: ${missing[*]}" >&2; exit 1; }
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # The lists may be older than what the archive still holds: look again once before giving up.
    install() { apt-get -qq -y install --no-install-recommends "${missing[@]}" </dev/null >"$BUILD_DIR/apt.log" 2>&1; }
    install || { apt-get -qq update && install; } || { tail -20 "$BUILD_DIR/apt.log" >&2; exit 1; }
fi

# --- 2. QEMU ---------------------------------------------------------------------------------------------------------
qemu=$(command -v qemu-system-x86_64 || true)
version=
# The version is asked of the package, not of the program: that takes 5 ms instead of 150.
[ -z "$qemu" ] || version=$(dpkg-query -W -f '${Version}' qemu-system-x86 2>/dev/null | sed 's/^[0-9]*://')
if [ -n "$qemu" ] && [ -z "$version" ]; then version=$("$qemu" --version | sed -n 's/.*version \([0-9.]*\).*/\1/p'); fi
# 10.1 has virtual functions (sriov-pf of virtio-net-pci).
if ! { echo 10.1; echo "${version:-0}"; } | sort -CV; then
    qemu=$BUILD_DIR/qemu/bin/qemu-system-x86_64
    want="qemu $QEMU_SUITES $(sum "$here/scripts/debs.sh" "$here/scripts/qemu.sh")"
    if ! stamp "$BUILD_DIR/qemu/.stamp" "$want"; then
        say "fetching QEMU from Debian ${QEMU_SUITES%%,*} (about 60 MB)"
        "$here/scripts/qemu.sh" "$BUILD_DIR/qemu" "$QEMU_SUITES"
        echo "$want" > "$BUILD_DIR/qemu/.stamp"
        say "$("$qemu" --version | head -1)"
    fi
fi

# --- 3. kernel -------------------------------------------------------------------------------------------------------
want="kernel $GUEST_SUITES $(sum "$here/scripts/debs.sh" "$here/scripts/kernel.sh")"
if ! stamp "$g/kernel/.stamp" "$want"; then
    say "fetching a Linux kernel from Debian $GUEST_SUITES"
    "$here/scripts/kernel.sh" "$g/kernel" "$GUEST_SUITES"
    echo "$want" > "$g/kernel/.stamp"
    say "Linux $(cat "$g/kernel/version")"
fi

# --- 4. initramfs ----------------------------------------------------------------------------------------------------
want="tools $GUEST_SUITES $(sum "$here/scripts/debs.sh" "$here/scripts/initramfs.sh")"
if ! stamp "$g/tools/.stamp" "$want"; then
    say "fetching the guests' programs from Debian $GUEST_SUITES"
    "$here/scripts/initramfs.sh" fetch "$g/tools" "$GUEST_SUITES"
    echo "$want" > "$g/tools/.stamp"
fi
want="initrd $(sum "$here/scripts/initramfs.sh" "$here/guest/init" "$g/kernel/version" "$g/kernel/.stamp" "$g/tools/.stamp")"
if ! stamp "$g/initrd.stamp" "$want"; then
    say "building the guests' initramfs"
    "$here/scripts/initramfs.sh" build "$g/tools" "$g/kernel" "$here/guest/init" "$g/initrd.cpio"
    echo "$want" > "$g/initrd.stamp"
fi

# --- 5. disk ---------------------------------------------------------------------------------------------------------
want="disk tools $GUEST_SUITES $(sum "$here/scripts/debs.sh" "$here/scripts/disk.sh")"
if ! stamp "$g/disk-tools/.stamp" "$want"; then
    say "fetching fio and GRUB from Debian $GUEST_SUITES"
    "$here/scripts/disk.sh" fetch "$g/disk-tools" "$GUEST_SUITES"
    echo "$want" > "$g/disk-tools/.stamp"
fi
want="disk $(sum "$here/guest/cmdline" "$here/guest/early" "$g/disk-tools/.stamp" "$g/initrd.stamp")"
if ! stamp "$g/disk.stamp" "$want"; then
    say "building the guests' disk"
    "$here/scripts/disk.sh" build "$g/disk-tools" "$g/kernel" "$g/initrd.cpio" "$here/guest/cmdline" "$here/guest/early" \
        "$g/disk.raw"
    echo "$want" > "$g/disk.stamp"
fi

# --- 6. RDMA ---------------------------------------------------------------------------------------------------------
# The order matters: rdma_rxe asks for crc32 by a name that no list of dependencies has.
modules="crc32_generic crc32_pclmul ib_core ib_uverbs ib_cm iw_cm rdma_cm rdma_ucm rdma_rxe"
want="rdma $RDMA_SUITES $(sum "$here/scripts/debs.sh" "$here/scripts/kernel.sh")"
if ! stamp "$g/rdma/.stamp" "$want"; then
    say "fetching a Linux kernel with RDMA from Debian $RDMA_SUITES (70 MB)"
    "$here/scripts/kernel.sh" "$g/rdma" "$RDMA_SUITES" linux-image-amd64
    # Drivers of what no guest has are most of it.
    rm -rf "$g"/rdma/lib/modules/*/kernel/{sound,drivers/{gpu,media,scsi,usb,iio,hwmon,staging}}
    echo "$want" > "$g/rdma/.stamp"
    say "Linux $(cat "$g/rdma/version")"
fi
want="rdma initrd $modules $(sum "$here/scripts/initramfs.sh" "$here/guest/init" "$g/rdma/version" "$g/rdma/.stamp" "$g/tools/.stamp")"
if ! stamp "$g/rdma-initrd.stamp" "$want"; then
    say "building the initramfs with RDMA"
    PROGRAMS=rdma MODULES=$modules \
        "$here/scripts/initramfs.sh" build "$g/tools" "$g/rdma" "$here/guest/init" "$g/rdma-initrd.cpio"
    echo "$want" > "$g/rdma-initrd.stamp"
fi

# --- 7. containers ---------------------------------------------------------------------------------------------------
modules="veth bridge br_netfilter iptable_raw iptable_mangle iptable_filter iptable_nat xt_conntrack xt_comment xt_mark
 xt_tcpudp xt_addrtype xt_statistic xt_nat xt_MASQUERADE xt_multiport xt_physdev ipt_REJECT"
want="pods initrd $(echo $modules) $(sum "$here/scripts/initramfs.sh" "$here/guest/init" "$g/kernel/version" "$g/kernel/.stamp" "$g/tools/.stamp")"
if ! stamp "$g/pods-initrd.stamp" "$want"; then
    say "building the initramfs with iptables"
    PROGRAMS="iptables-legacy-restore iptables-legacy-save" XTABLES=1 MODULES=$modules \
        "$here/scripts/initramfs.sh" build "$g/tools" "$g/kernel" "$here/guest/init" "$g/pods-initrd.cpio"
    echo "$want" > "$g/pods-initrd.stamp"
fi

# --- 8. cnitool ------------------------------------------------------------------------------------------------------
cnitool=$g/cnitool/cnitool
want="cnitool $GUEST_SUITES $(sum "$here/scripts/debs.sh" "$here/scripts/cnitool.sh" "$here/scripts/cnitool.sum")"
if ! stamp "$g/cnitool/.stamp" "$want"; then
    rm -f "$cnitool"
    # A machine that has failed is asked again in an hour, not by each of the tests.
    if [ -z "$(find "$g/cnitool.failed" -mmin -60 2>/dev/null)" ]; then
        say "building cnitool with Go"
        if "$here/scripts/cnitool.sh" "$g/cnitool" "$g/cnitool.work" "$GUEST_SUITES"; then
            echo "$want" > "$g/cnitool/.stamp"
            rm -f "$g/cnitool.failed"
            say "$(sed -n '1s/^\(\S* \S*\).*/\1/p' "$here/scripts/cnitool.sum")"
        else
            touch "$g/cnitool.failed"
        fi
    fi
    if ! [ -e "$cnitool" ]; then
        cnitool=
        say "no cnitool, tests with it are left out; what is wrong is said above. To try again: rm $g/cnitool.failed" >&2
    fi
fi

# --- 9. libfabric ----------------------------------------------------------------------------------------------------
fabric=$BUILD_DIR/libfabric
want="libfabric $FABRIC_SUITE $(sum "$here/scripts/debs.sh" "$here/scripts/libfabric.sh")"
if ! stamp "$fabric/.stamp" "$want"; then
    rm -rf "$fabric"
    # As with cnitool: once an hour.
    if [ -z "$(find "$BUILD_DIR/libfabric.failed" -mmin -60 2>/dev/null)" ]; then
        say "building libfabric from Debian $FABRIC_SUITE's source (about a minute)"
        if "$here/scripts/libfabric.sh" "$fabric" "$BUILD_DIR/libfabric.work" "$FABRIC_SUITE"; then
            echo "$want" > "$fabric/.stamp"
            rm -f "$BUILD_DIR/libfabric.failed"
            say "libfabric $(cat "$fabric/version")"
        else
            rm -rf "$fabric"
            touch "$BUILD_DIR/libfabric.failed"
        fi
    fi
    if ! [ -e "$fabric" ]; then
        say "no libfabric of Debian $FABRIC_SUITE, the tests with it are left out; what is wrong is said above." \
            "To try again: rm $BUILD_DIR/libfabric.failed" >&2
    fi
fi

rm -rf "$BUILD_DIR/apt"
cat > "$g/env.new" <<E
QEMU=$qemu
KERNEL=$g/kernel/vmlinux
KERNEL_VERSION=$(cat "$g/kernel/version")
INITRD=$g/initrd.cpio
DISK=$g/disk.raw
RDMA_KERNEL=$g/rdma/vmlinux
RDMA_INITRD=$g/rdma-initrd.cpio
PODS_INITRD=$g/pods-initrd.cpio
CNITOOL=$cnitool
E
mv "$g/env.new" "$g/env"
