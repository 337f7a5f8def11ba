#!/bin/bash
# cnitool.sh DEST WORK SUITE: the CNI project's own cnitool as DEST/cnitool, built by Go, linked so that it needs nothing of a guest.
# Modules come by Go's own settings for proxy and checksum database, and their sums have to be those of cnitool.sum.
# A Go that is too old, or none: that of Debian SUITE, unpacked below WORK and not installed.
# All that Go keeps (modules, cache, counters) is below WORK, which is removed in the end.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
dest=$1 work=$2 suite=$3
read -r module version _ < "$here/cnitool.sum"
debian=golang-1.24
end() { [ ! -e "$work" ] || { chmod -R u+w "$work" && rm -rf "$work"; }; }
end
mkdir -p "$work" "$dest"
trap end EXIT

# Settings of the user hold (`go env -w`), but nothing is written there.
export GOENV=${GOENV:-${XDG_CONFIG_HOME:-${HOME:-/}/.config}/go/env} XDG_CONFIG_HOME=$work/config
export GOPATH=$work/path GOMODCACHE=$work/modules GOCACHE=$work/cache GOBIN=$dest GOTOOLCHAIN=local GOWORK=off
export CGO_ENABLED=0 GOAMD64=v1
cd "$work"
go=$(command -v go || true)
has=
[ -z "$go" ] || has=$("$go" env GOVERSION | sed 's/^go//')
# What the module asks for.
if ! { echo 1.21; echo "${has:-0}"; } | sort -CV; then
    NODEPS=1 "$here/debs.sh" "$work/debian" "$suite" "$debian-go" "$debian-src"
    export GOROOT=$work/debian/usr/lib/${debian/lang/}
    go=$GOROOT/bin/go
fi
timeout 600 "$go" install -trimpath -ldflags='-s -w' "$module/cnitool@$version"
if ! "$go" version -m "$dest/cnitool" | awk '$1 == "mod" || $1 == "dep" { print $2, $3, $4 }' | diff "$here/cnitool.sum" - >&2; then
    rm -f "$dest/cnitool"
    echo "cnitool.sh: these are not the modules that cnitool.sum names" >&2
    exit 1
fi
