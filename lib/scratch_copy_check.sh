# Sees that what a task made in a scratch folder has come to its work folder whole. Nextflow copies it
# there with `cp … || true`: with the disk full, a task ends with most of its files cut short, exit code 0
# and status COMPLETED, and a copy that is cut short also stays and fills the disk.
#
# Sourced as afterScript, after that copy, by the task's wrapper: bash, coreutils and find alone,
# because it runs outside of containers, with the scratch folder as current folder. What was to be
# copied, and where to, only Nextflow's own function knows; it is called once more with the copying
# replaced by telling.

octane_listed() (
    nxf_fs_copy() { printf '%s\t%s\n' "$2" "$1"; }
    # Its records, which it copies as well.
    cp() { :; }
    # From Nextflow 25.10 on the results have a function of their own, and what the other says goes to errors.
    if declare -F nxf_unstage_outputs >/dev/null; then nxf_unstage_outputs; else nxf_unstage; fi 2>/dev/null
)

octane_sizes() (
    cd "$1" || return 0
    # GNU's find, or on macOS one without -printf, beside a stat of its own.
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
    # Nothing was copied of a task that failed, or that ran in its work folder.
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
    # What was copied goes, also because the message needs some of the space.
    while IFS=$'\t' read -r target name; do
        [[ "$name" ]] && rm -rf "${target:?}/$name"
    done <<<"$listed"
    # ENOSPC: the workflow's sign that another attempt can help.
    nxf_main_ret=28
    # Copies the task's output and errors again, for which there may not have been space either.
    nxf_unstage
    # Without the task's folder, which Nextflow tells by itself and takes out of such text.
    printf 'error: %s %s\n' \
        "The results could not be copied from the scratch folder: $file has $there of $size bytes, and $more other files are cut short." \
        "$free: free some, or give --scratch_dir false, which writes nothing twice, and run again with -resume. What was cut is removed." |
        tee -a "$folder/.command.err" >&2
}

octane_copied
