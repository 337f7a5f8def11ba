#!/bin/bash
# libfabric.sh DEST WORK SUITE: the libfabric of Debian SUITE as DEST/lib/libfabric.so.1, with the providers tcp and verbs.
# It is built from source, since the package of a newer Debian asks for a newer C library than this machine has.
# Of the source package only the authors' archive is fetched; its sum is that of Debian's index, which is signed.
# Autotools that the machine lacks are those of its own Debian, unpacked below WORK, which is removed in the end.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
dest=$1 work=$2 suite=$3
has() { local program; for program; do command -v "$program" >/dev/null || { echo "$program"; return 1; }; done; }
missing=$(has cc make perl) || { echo "libfabric.sh: there is no $missing" >&2; exit 1; }
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

# --- autotools -------------------------------------------------------------------------------------------------------
if ! has autoreconf automake libtoolize m4 >/dev/null; then
    . /etc/os-release
    tools=$work/tools
    NODEPS=1 "$here/debs.sh" "$tools" "$VERSION_CODENAME" autoconf automake libtool m4 libsigsegv2 autotools-dev
    # They are told in each place where their files are.
    grep -rlIZ '/usr/\(bin\|share\)' "$tools/usr" |
        xargs -0 sed -i "s,/usr/bin/\(auto\|m4\),$tools&,g; s,/usr/share/\(auto\|aclocal\|libtool\|misc\),$tools&,g"
    sed -i "s,\(prefix\|datadir\|pkgauxdir\|pkgltdldir\|aclocaldir\)=\"/usr,\1=\"$tools/usr,g" "$tools/usr/bin/libtoolize"
    automake=("$tools"/usr/bin/automake-*) aclocal=("$tools"/usr/bin/aclocal-*) lib=("$tools"/usr/lib/*/libsigsegv.so.*)
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$(dirname "${lib[0]}")" "$tools/usr/bin/m4" > "$work/m4"
    chmod +x "$work/m4"
    export M4=$work/m4 AUTOMAKE=${automake[0]} ACLOCAL=${aclocal[0]} PATH=$tools/usr/bin:$PATH
fi

# --- source ----------------------------------------------------------------------------------------------------------
# The apt state that debs.sh makes, once more for sources.
SHOW=1 "$here/debs.sh" "$work/none" "$suite" libc6 >/dev/null
mkdir -p "$work/lists/partial" "$work/source"
sed 's/^deb /deb-src /' "$BUILD_DIR/apt/$suite/etc/apt/sources.list" > "$work/sources.list"
apt() {
    APT_CONFIG=$BUILD_DIR/apt/$suite/apt.conf \
        apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::State::Lists="$work/lists" "$@"
}
apt update
cd "$work/source"
apt --tar-only --download-only source libfabric
tar --strip-components=1 -xf ./libfabric_*.orig.tar.*

# --- library ---------------------------------------------------------------------------------------------------------
quietly() { "$@" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; echo "libfabric.sh: ${1##*/} failed" >&2; exit 1; }; }
quietly autoreconf -if
# As Debian builds it, but for what it looks for in the machine: graphics cards, io_uring, other providers.
CFLAGS='-O2 -g0 -fvisibility=hidden' quietly ./configure --prefix="$dest" --libdir="$dest/lib" --disable-static \
    --disable-dependency-tracking --enable-only --enable-tcp=yes --enable-verbs=yes --without-uring --disable-kdreg2 --enable-xpmem=no
quietly make -j"$(nproc)" src/libfabric.la
rm -rf "$dest"
mkdir -p "$dest/lib"
cp -d src/.libs/libfabric.so.1* "$dest/lib/"
strip --strip-unneeded "$dest"/lib/libfabric.so.1.*
sed -n 's/^#define PACKAGE_VERSION "\(.*\)"/\1/p' config.h > "$dest/version"
