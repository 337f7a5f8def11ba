#!/bin/bash
# debs.sh DEST SUITE[,SUITE...] PACKAGE...: fetch Debian packages of any suite with what they depend on, unpack into DEST.
#   Nothing is installed; the machine's apt and dpkg state is not touched; no root needed.
#   The first suite is the preferred one.  NODEPS=1: only the packages named.
#   SHOW=1: do not fetch, print what each package depends on directly, one name a line.
# The archive is the one the machine's own apt configuration names; signatures are checked with Debian's keyring.
set -euo pipefail
dest=$1 suites=$2; shift 2
. /etc/os-release
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
    awk -v own="${VERSION_CODENAME:-}" '$2 == own { print $1; exit }')}
[ -n "$mirror" ] || { echo "debs.sh: no Debian archive in the apt configuration; set DEBIAN_MIRROR" >&2; exit 1; }
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keyring" ] || { echo "debs.sh: $keyring is missing (package debian-archive-keyring)" >&2; exit 1; }

# The private state serves the calls that follow; setup.sh throws it away at its end.
work=$BUILD_DIR/apt/$(echo "$suites" | tr ', ' '__')
mkdir -p "$work"/etc/apt/{apt.conf.d,preferences.d,trusted.gpg.d,sources.list.d} \
    "$work"/var/lib/{apt/lists/partial,dpkg} "$work"/var/cache/apt/archives/partial
: > "$work/var/lib/dpkg/status"
for s in ${suites//,/ }; do echo "deb [signed-by=$keyring] $mirror $s main"; done > "$work/etc/apt/sources.list"
# Dates are not checked: a machine in a test farm may well live at another date than the archive.
cat > "$work/apt.conf" <<C
Dir "$work/";
Dir::State::status "$work/var/lib/dpkg/status";
APT::Architecture "amd64"; APT::Architectures { "amd64"; };
APT::Install-Recommends "false"; APT::Sandbox::User "root";
APT::Default-Release "${suites%%,*}";
Acquire::Languages "none"; Acquire::Check-Valid-Until "false"; Acquire::Check-Date "false";
Acquire::Retries "3";
C
export APT_CONFIG=$work/apt.conf
if [ ! -e "$work/updated" ]; then
    apt-get -qq update
    touch "$work/updated"
fi
if [ "${SHOW:-0}" = 1 ]; then
    apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$@" |
        awk '$1 ~ /Depends:$/ { print $2 }'
    exit
fi
debs=$work/var/cache/apt/archives
rm -f "$debs"/*.deb
if [ "${NODEPS:-0}" = 1 ]; then
    (cd "$debs" && apt-get -qq download "$@")
else
    apt-get -qq -y --download-only -o Debug::NoLocking=1 install "$@" </dev/null >/dev/null
fi
rm -rf "$dest"
mkdir -p "$dest"
for d in "$debs"/*.deb; do
    dpkg-deb -x "$d" "$dest"
    basename "$d"
done > "$dest/.debs"
rm -f "$debs"/*.deb
rm -rf "$dest"/usr/share/{doc,man,locale,lintian,icons,info}
