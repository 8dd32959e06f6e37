# Checks that a task's results were copied completely from its scratch folder to its work folder. Nextflow
# copies them with `cp … || true`: on a full disk, a task ends with truncated files, exit code 0 and status
# COMPLETED, and the truncated copies stay and fill the disk.
#
# Sourced as afterScript, after that copy, by the task's wrapper, with the scratch folder as current
# folder. Uses only bash, coreutils and find, because it runs outside containers. Only Nextflow's own
# function knows which files it copies where; it is called once more with a copy command that lists them.

octane_listed() (
    nxf_fs_copy() { printf '%s\t%s\n' "$2" "$1"; }
    # For the task's own logs, which it copies as well.
    cp() { :; }
    # Since Nextflow 25.10 a separate function copies the results.
    if declare -F nxf_unstage_outputs >/dev/null; then nxf_unstage_outputs; else nxf_unstage; fi 2>/dev/null
)

octane_sizes() (
    cd "$1" || return 0
    # GNU find, or macOS's find without -printf and its own stat.
    if find . -maxdepth 0 -printf '' 2>/dev/null; then
        find -L "./$2" -type f -printf '%s\t%P\n' 2>/dev/null
    else
        find -L "./$2" -type f -exec stat -f '%z%t%N' {} + 2>/dev/null |
            while IFS=$'\t' read -r size file; do
                file=${file#"./$2"}
                printf '%s\t%s\n' "$size" "${file#/}"
            done
    fi | LC_ALL=C sort
)

octane_copied() {
    # Nothing was copied if the task failed or ran in its work folder.
    [[ "${NXF_SCRATCH:-}" && "${nxf_main_ret:-0}" == 0 ]] || return 0
    local listed target folder name short file size there free
    local -i more=-1
    listed=$(octane_listed)
    while IFS=$'\t' read -r target name; do
        [[ "$name" ]] || continue
        short=$(LC_ALL=C comm -23 <(octane_sizes . "$name") <(octane_sizes "$target" "$name") | sort -rn)
        [[ "$short" ]] || continue
        if ((more < 0)); then
            IFS=$'\t' read -r size file <<<"$short"
            file="$name${file:+/$file}"
            folder=$target
            there=0
            [[ ! -e "$target/$file" ]] || there=$(wc -c <"$target/$file")
        fi
        more+=$(wc -l <<<"$short")
    done <<<"$listed"
    ((more >= 0)) || return 0
    free=$(df -Pk "$folder" | awk 'END { print $4 " kB were free on " $6 }')
    # Remove the copies, also to free space for the message.
    while IFS=$'\t' read -r target name; do
        [[ "$name" ]] && rm -rf "${target:?}/$name"
    done <<<"$listed"
    # ENOSPC, which the workflow retries.
    nxf_main_ret=28
    # Copy the task's output and errors again, which may not have had space either.
    nxf_unstage
    # Without the task's folder, which Nextflow removes from the message and reports separately.
    printf 'error: %s %s\n' \
        "The results could not be copied from the scratch folder: $file has $there of $size bytes, and $more other files are cut short." \
        "$free: free some, or give --scratch_dir false, which writes nothing twice, and run again with -resume. The copies were removed." |
        tee -a "$folder/.command.err" >&2
}

octane_copied
