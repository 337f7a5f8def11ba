# Gfarm on this machine: gfmd and gfsd here, and behind a cable a network namespace for a client.
# Run in mount, network and PID namespaces that are this script's alone, as root.
#   gfarm.sh DIRECTORY SPOOL CPU          gfarm2fs is the client, mounted at DIRECTORY/mnt
#   gfarm.sh DIRECTORY SPOOL CPU IMAGE    a store will be it: /vm/d0 is a copy of the image
set -eu
dir=$1 spool=$2 cpu=$3 image=${4:-}
mkdir -p "$dir/home" "$dir/mnt" "$spool"
mount --make-rprivate /
# Names and homes of this run: nothing of the machine's is changed.
printf '127.0.0.1 localhost\n10.99.0.2 gfsrv\n10.99.0.1 gfcli\n' > "$dir/hosts"
sed "s#^root:.*#root:x:0:0:root:$dir/home:/bin/sh#" /etc/passwd > "$dir/passwd"
mount --bind "$dir/hosts" /etc/hosts
mount --bind "$dir/passwd" /etc/passwd
export HOME="$dir/home" GFARM_CONFIG_FILE="$dir/gfarm2.conf"
unshare --net sleep infinity &
client=$!
ip link set lo up
until [ "$(readlink /proc/$client/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add gf1 type veth peer name gf0 netns $client
ip address add 10.99.0.2/24 dev gf1
ip link set gf1 up
nsenter --target $client --net sh -c 'ip link set lo up; ip address add 10.99.0.1/24 dev gf0; ip link set gf0 up'
cd "$dir"
printf 'metadb_server_host gfsrv\nmetadb_server_port 10601\nauth enable sharedsecret *\nsockopt keepalive\n' > gfarm2.conf
# gfsd is this user to gfmd, as which it runs.
echo '_gfarmfs root' > user_map
{ cat gfarm2.conf; printf 'admin_user root\nmetadb_db_access_type none\nlocal_user_map %s\n' "$dir/user_map"; } > gfmd.conf
{ cat gfarm2.conf; printf 'spool %s\nlocal_user_map %s\n' "$spool" "$dir/user_map"; } > gfsd.conf
gfkey -f -p 31536000
taskset -c "$cpu" gfmd -f "$dir/gfmd.conf" -P "$dir/gfmd.pid" -F "$dir/gfmd.log" -L notice
try() { n=0; until "$@" > try.log 2>&1; do n=$((n + 1)); [ $n -lt 300 ]; sleep 0.1; done; }
try gfwhoami
gfhost -c -a x86_64-debian -p 10600 -n 2 gfsrv
taskset -c "$cpu" gfsd -f "$dir/gfsd.conf" -h gfsrv -P "$dir/gfsd.pid" -F "$dir/gfsd.log" -L notice
there() { [ -n "$(nsenter --target $client --net gfsched)" ]; }
try there
if [ -n "$image" ]; then
    gfmkdir /vm
    gfreg "$image" /vm/d0
else
    nsenter --target $client --net taskset -c "$cpu" gfarm2fs -f "$dir/mnt" > gfarm2fs.log 2>&1 &
    mounted() { mountpoint -q "$dir/mnt"; }
    try mounted
fi
echo ready
# Whoever started this says when it is over, or has ended: everything here ends with this.
read -r _ || true
