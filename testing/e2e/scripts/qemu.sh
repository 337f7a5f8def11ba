#!/bin/bash
# qemu.sh DEST SUITES: QEMU of another Debian, runnable here without chroot, container or root.
# DEST/bin/qemu-system-x86_64 starts the real binary by the ld.so and the libraries it came with.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
dest=$1
"$here/debs.sh" "$dest" "$2" qemu-system-x86
mkdir -p "$dest/bin"
# Debian 12's packages are not merged into /usr, later ones are.
ld=usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
[ -e "$dest/$ld" ] || ld=lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
cat > "$dest/bin/qemu-system-x86_64" <<W
#!/bin/sh
r=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
export QEMU_MODULE_DIR="\$r/usr/lib/x86_64-linux-gnu/qemu"
exec "\$r/$ld" --argv0 "\$0" --library-path "\$r/usr/lib/x86_64-linux-gnu:\$r/lib/x86_64-linux-gnu" \\
    "\$r/usr/bin/qemu-system-x86_64" -L "\$r/usr/share/qemu" -L "\$r/usr/share/seabios" "\$@"
W
chmod +x "$dest/bin/qemu-system-x86_64"
