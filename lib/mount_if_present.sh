# Says how a container is to see a folder, on the node and before the container: octane's own check
# is then what a user hears of a folder that is not there. Docker would make one, as root, a typing
# error's too, and Apptainer would stop. Of one that is yet to be made the parent is shown, as PREFLIGHT
# looks at that; the wrapper of a task makes it outside.
#
#   mount_if_present.sh OPTION FOLDER

for place in "$2" "$(dirname "$2")"; do
    # Of what has blanks PREFLIGHT says that it is no path to be used.
    if [[ -d $place && $place != / && $place != *[[:space:]]* ]]; then
        echo "$1 $place:$place"
        break
    fi
done
