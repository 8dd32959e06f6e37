# Prints the mount option for a folder if it exists, on the node and before the container starts, so that
# octane's own check reports a missing folder. Docker would create it as root, even for a typo, and
# Apptainer would stop. For a folder that is yet to be created it mounts the parent, which PREFLIGHT
# checks; a task's wrapper creates the folder outside the container.
#
#   mount_if_present.sh OPTION FOLDER

for place in "$2" "$(dirname "$2")"; do
    # PREFLIGHT rejects paths with blanks.
    if [[ -d $place && $place != / && $place != *[[:space:]]* ]]; then
        echo "$1 $place:$place"
        break
    fi
done
