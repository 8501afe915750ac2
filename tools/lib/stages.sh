# shellcheck shell=bash
# Sourced by .ci/run: stages of a run, and what each took. `stage NAME COMMAND...` runs a command; print_stages shows the
# table so far.

stage_names=()
stage_seconds=() # "wall user+sys"

# A failing command ends the script; so `stage` must not stand where bash ignores failures, such as left of ||.
stage() {
    local name=$1 file
    shift
    file=$(mktemp)
    say "$name"
    stage_names+=("$name")
    stage_seconds+=("- -") # until it has ended
    exec 3>&2
    local TIMEFORMAT='%R %U %S'
    { time "$@" 2>&3; } 2>"$file"
    exec 3>&-
    stage_seconds[-1]=$(awk '{ printf "%.0f %.0f", $1, $2 + $3 }' "$file")
    rm "$file"
}

# stage_before SECONDS NAME COMMAND...: the stage, where no more seconds than these have passed since the script began.
stage_before() {
    local latest=$1
    shift
    if ((SECONDS > latest)); then
        say "$1: left out, as $SECONDS seconds have passed, which is more than $latest"
        stage_names+=("$1: left out")
        stage_seconds+=("- -")
        return
    fi
    stage "$@"
}

print_stages() {
    local i wall cpu
    printf '%-36s %8s %8s\n' "stage" "seconds" "CPU s"
    for i in "${!stage_names[@]}"; do
        read -r wall cpu <<<"${stage_seconds[i]}"
        printf '%-36s %8s %8s\n' "${stage_names[i]}" "$wall" "$cpu"
    done
    printf '%s\n' "${stage_seconds[@]}" |
        awk '{ wall += $1; cpu += $2 } END { printf "%-36s %8.0f %8.0f\n", "all", wall, cpu }'
}
