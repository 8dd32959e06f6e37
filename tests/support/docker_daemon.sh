#!/usr/bin/env bash
# Runs a Docker daemon, with all that it keeps in FOLDER, until standard input closes, however the process at its
# other end ended; then removes FOLDER with everything in it. Usage, as root: docker_daemon.sh FOLDER
#
# Its mounts, and what it writes to /run and /etc, exist only in its own mount namespace, and end with it.
set -euo pipefail

if [[ ! ${OCTANE_OWN_MOUNTS:-} ]]; then
    OCTANE_OWN_MOUNTS=1 exec unshare --mount --propagation slave "$BASH" "$0" "$@"
fi
folder=$1
group=$(basename "$folder")
trap '' HUP INT TERM

mkdir "$folder"/{etc,work}
mount -t tmpfs tmpfs /run
mount -t overlay -o "lowerdir=/etc,upperdir=$folder/etc,workdir=$folder/work" overlay /etc
dockerd --host "unix://$folder/docker.sock" --data-root "$folder/data" --exec-root "$folder/exec" \
    --pidfile "$folder/docker.pid" --cgroup-parent "/$group" \
    --iptables=false --ip-forward=false --ip-masq=false --bridge=none \
    </dev/null >"$folder/dockerd.log" 2>&1 &
daemon=$!

while :; do
    code=0
    read -r -t 1 || code=$?
    # Not a time-out: the pipe was closed.
    ((code > 128)) || break
    kill -0 "$daemon" 2>/dev/null || { cat "$folder/dockerd.log" >&2 && break; }
done

# The daemon ends its containers.
kill -TERM "$daemon" 2>/dev/null || true
wait "$daemon" || true
while read -r _ place _; do
    [[ $place != "$folder"/* && $place != /etc ]] || umount --lazy "$place" || true
done < <(tac /proc/self/mounts)
rm -rf --one-file-system "$folder"
for place in /sys/fs/cgroup/"$group" /sys/fs/cgroup/*/"$group"; do
    [[ ! -d $place ]] || find "$place" -depth -type d -exec rmdir {} +
done
