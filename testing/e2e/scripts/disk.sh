#!/bin/bash
# disk.sh fetch TOOLS SUITE                             fio for guests, and GRUB, unpacked into TOOLS
# disk.sh build TOOLS KERNEL INITRD CMDLINE INIT OUT    a disk that a BIOS boots: GRUB, a kernel, one ext4 file system
# The file system has what is in INITRD, the guests' initramfs, and fio.  Nothing is mounted, no root is needed but for
# the owner of the files.  INIT is that of the small initramfs which finds the root.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
modules="virtio_pci virtio_blk ext4"
if [ "$1" = fetch ]; then
    "$here/debs.sh" "$2" "$3" fio grub-pc-bin
    exit
fi
tools=$2 kdir=$3 initrd=$4 cmdline=$5 init=$6 out=$7
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root early=$work/early
mkdir -p "$root" "$early"/{bin,dev,proc,sys,root,modules}
chmod 755 "$root" "$early"
(cd "$root" && cpio --quiet -id < "$initrd")
ld=$tools/usr/lib64/ld-linux-x86-64.so.2
libs=$tools/usr/lib/x86_64-linux-gnu

# fio with the libraries it came with, apart from those of the other programs.
mkdir -p "$root/opt/fio"
cp -L "$tools/usr/bin/fio" "$root/opt/fio/"
cp -L "$ld" "$root/opt/fio/ld.so"
"$ld" --library-path "$libs:$libs/ceph" --list "$tools/usr/bin/fio" | awk '/=> \//{print $3}' |
    xargs cp -L -t "$root/opt/fio"
printf '#!/bin/sh\nexec /opt/fio/ld.so --library-path /opt/fio /opt/fio/fio "$@"\n' > "$root/bin/fio"
chmod 755 "$root/bin/fio"

# The initramfs that finds the root, modules in the order they load.
cp "$root/bin/busybox" "$early/bin/busybox"
cp "$init" "$early/init"
chmod 755 "$early/init"
ver=$(cat "$kdir/version")
for m in $modules; do modprobe -d "$kdir" -S "$ver" --show-depends "$m" 2>/dev/null || true; done |
    awk '/^insmod/ && !seen[$2]++ { print $2 }' | while read -r f; do
    n=${f##*/} n=${n%.xz}
    case $f in *.xz) xz -dc "$f" ;; *) cat "$f" ;; esac > "$early/modules/$n"
    strip --strip-debug "$early/modules/$n"
    echo "$n" >> "$early/modules/order"
done
mkdir -p "$root/boot"
cp "$kdir/vmlinuz" "$root/boot/vmlinuz"
(cd "$early" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) > "$root/boot/initrd"

# A partition table with one partition from 1 MiB on, and before it GRUB, which has its commands inside.
size=$((384 << 20)) start=$((1 << 20))
cat > "$work/grub.cfg" <<C
linux (hd0,msdos1)/boot/vmlinuz $(cat "$cmdline")
initrd (hd0,msdos1)/boot/initrd
boot
C
grub=$tools/usr/lib/grub/i386-pc
"$ld" --library-path "$libs" "$tools/usr/bin/grub-mkimage" -O i386-pc -d "$grub" -o "$work/core.img" -p /boot \
    -c "$work/grub.cfg" biosdisk part_msdos ext2 linux
rm -f "$out.new"
truncate -s $size "$out.new"
mke2fs -q -t ext4 -d "$root" -E offset=$start,lazy_itable_init=0 "$out.new" $(((size - start) >> 10))k
put() { dd if="$1" of="$out.new" conv=notrunc status=none bs=1 seek="$2" count="${3:-$(stat -c %s "$1")}"; }
put "$grub/boot.img" 0 440
dd if="$work/core.img" of="$out.new" conv=notrunc status=none bs=512 seek=1
# Little-endian: bootable, type Linux, first sector, sectors; and what says that this is a boot sector.
le() { printf '%08x' "$1" | sed 's/\(..\)\(..\)\(..\)\(..\)/\\x\4\\x\3\\x\2\\x\1/'; }
printf '\x80\xfe\xff\xff\x83\xfe\xff\xff'"$(le $((start / 512)))$(le $(((size - start) / 512)))" > "$work/entry"
printf '\x55\xaa' > "$work/mark"
put "$work/entry" 446
put "$work/mark" 510
mv "$out.new" "$out"
