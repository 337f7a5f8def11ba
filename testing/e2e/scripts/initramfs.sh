#!/bin/bash
# initramfs.sh fetch TOOLS SUITES                 the programs of the guests, unpacked into TOOLS
# initramfs.sh build TOOLS KERNEL INIT OUT.cpio   the initramfs: programs, their libraries, modules of KERNEL, INIT as /init
# More programs and modules than all guests need: PROGRAMS=, MODULES=, which are loaded in this order after the others.
# XTABLES=1: what iptables loads, too.
# Not compressed: unpacking costs an emulated guest more than reading the bytes.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
programs="ip bridge ss tc ethtool iperf3 socat tcpdump ping ${PROGRAMS:-}"
modules="virtio_pci virtio_net virtio_console virtio_rng af_packet 8021q ${MODULES:-}"
if [ "$1" = fetch ]; then
    exec "$here/debs.sh" "$2" "$3" busybox-static dash iproute2 iputils-ping ethtool iperf3 socat tcpdump iptables
fi
tools=$2 kdir=$3 init=$4 out=$5
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,root,lib/modules}
ln -s bin "$root/sbin"
ln -s lib "$root/lib64"
first() { local f; for f; do [ -e "$f" ] && { echo "$f"; return; }; done; echo "initramfs.sh: missing: $*" >&2; return 1; }

bb=$(first "$tools/usr/bin/busybox" "$tools/bin/busybox")
cp "$bb" "$root/bin/busybox"
# Not busybox's sh: Debian's prefers its own applets (ip, ping) to what is in PATH.
for a in $("$bb" --list); do
    case $a in ip | ping | ping6 | busybox | init | sh | ash) ;; *) ln -s busybox "$root/bin/$a" ;; esac
done
cp "$(first "$tools/usr/bin/dash" "$tools/bin/dash")" "$root/bin/sh"
ld=$(first "$tools/usr/lib64/ld-linux-x86-64.so.2" "$tools/lib64/ld-linux-x86-64.so.2")
libs=$tools/usr/lib/x86_64-linux-gnu:$tools/lib/x86_64-linux-gnu
cp -L "$ld" "$root/lib/ld-linux-x86-64.so.2"
for b in $programs; do
    p=$(first "$tools"/{usr/bin,usr/sbin,bin,sbin}/"$b")
    rm -f "$root/bin/$b"
    cp -L "$p" "$root/bin/$b"
    "$ld" --library-path "$libs" --list "$p" | awk '/=> \//{print $3}' | while read -r l; do
        [ -e "$root/lib/${l##*/}" ] || cp -L "$l" "$root/lib/"
    done
done
# glibc loads this one by itself, when a thread is cancelled (iperf3).
cp -L "$(first "$tools"/{usr/,}lib/x86_64-linux-gnu/libgcc_s.so.1)" "$root/lib/"
if [ "${XTABLES:-0}" = 1 ]; then
    mkdir -p "$root/usr/lib/x86_64-linux-gnu"
    cp -r "$(first "$tools"/{usr/,}lib/x86_64-linux-gnu/xtables)" "$root/usr/lib/x86_64-linux-gnu/"
fi

# Modules in the order they load, unpacked and without debug information.
ver=$(cat "$kdir/version")
for m in $modules; do modprobe -d "$kdir" -S "$ver" --show-depends "$m" 2>/dev/null || true; done |
    awk '/^insmod/ && !seen[$2]++ { print $2 }' | while read -r f; do
    n=${f##*/} n=${n%.xz} n=${n%.zst} n=${n%.gz}
    case $f in *.xz) xz -dc "$f" ;; *.zst) zstd -dcq "$f" ;; *.gz) gzip -dc "$f" ;; *) cat "$f" ;; esac > "$root/lib/modules/$n"
    strip --strip-debug "$root/lib/modules/$n"
    echo "$n" >> "$root/lib/modules/order"
done
cp "$init" "$root/init"
chmod 755 "$root/init"
(cd "$root" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) > "$out.new"
mv "$out.new" "$out"
