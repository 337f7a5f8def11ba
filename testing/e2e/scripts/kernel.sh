#!/bin/bash
# kernel.sh DEST SUITES [PACKAGE]: a Debian kernel: DEST/vmlinux, DEST/vmlinuz, DEST/lib/modules/VERSION, DEST/version.
# PACKAGE is what depends on the newest one, linux-image-cloud-amd64 if it is not named.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
dest=$1 suites=$2 package=${3:-linux-image-cloud-amd64}
deps() { SHOW=1 "$here/debs.sh" "$dest" "$suites" "$@"; }
image=$(deps "$package" | grep '^linux-image-' | head -1)
# Newer packaging puts modules and kernel into packages of their own.
more=$(deps "$image" | grep -E '^linux-(modules|binary)-[0-9]' || true)
NODEPS=1 "$here/debs.sh" "$dest" "$suites" $image $more
if [ ! -d "$dest/lib/modules" ]; then
    mkdir -p "$dest/lib"
    ln -s ../usr/lib/modules "$dest/lib/modules"
fi
version=$(ls "$dest/lib/modules")
# modules.dep is normally made when the package is installed.
depmod -b "$dest" "$version"

# bzImage -> the ELF inside (Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length).  QEMU starts
# it by its PVH note: no real-mode code and no decompression inside a guest that may be emulated.
bz=
for f in "$dest"/boot/vmlinuz-* "$dest"/lib/modules/*/vmlinuz; do [ -e "$f" ] && bz=$f; done
num() { od -An -t"u$2" -j"$1" -N"$2" "$bz" | tr -d ' '; }
setup=$(num 497 1)
offset=$(num 584 4)
length=$(num 588 4)
start=$(((setup + 1) * 512 + offset))
# The last four bytes of the payload are its unpacked size, not part of the stream.
tail -c +$((start + 1)) "$bz" > "$dest/payload"
truncate -s $((length - 4)) "$dest/payload"
case $(head -c 4 "$dest/payload" | od -An -tx1 | tr -d " \n") in
    28b52ffd) unpack="zstd -dcq" ;;
    02214c18) unpack="lz4 -dc" ;;
    fd377a58) unpack="xz -dc" ;;
    1f8b08*) unpack="gzip -dc" ;;
    *) echo "kernel.sh: $bz: compressed in a way not known here" >&2; exit 1 ;;
esac
$unpack < "$dest/payload" > "$dest/vmlinux"
[ "$(head -c 4 "$dest/vmlinux" | od -An -tx1 | tr -d ' ')" = 7f454c46 ] || { echo "kernel.sh: $bz: no ELF inside" >&2; exit 1; }
# As it was, for guests that boot from a disk.
cp "$bz" "$dest/vmlinuz"
rm -rf "$dest/payload" "$dest/boot" "$dest/usr/share"
echo "$version" > "$dest/version"
