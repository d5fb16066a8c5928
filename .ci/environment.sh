# Installs nox, and sets the variables that .ci/run and .ci/nightly share. noxfile.py describes them.
export CI="${CI:-true}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off
export PIP_NO_COMPILE=0 # this turns --no-compile on; Python compiles a module when it is imported
scratch=$(mktemp -d "${TMPDIR:-/tmp}/tensorwire.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/nox"
"$scratch/nox/bin/pip" install -q nox
nox=$scratch/nox/bin/nox

# Starts sessions in a process of a lower priority.
beside() {
    nice -n 10 "$nox" -s "$@" >"$scratch/$1.log" 2>&1 &
    processes+=("$!" "$scratch/$1.log")
}

# Runs sessions, waits for those that run beside them, prints their output, and exits.
together() {
    local code=0
    "$nox" -s "$@" || code=1
    set -- "${processes[@]}"
    while [ $# -gt 0 ]; do
        wait "$1" || code=1
        cat "$2"
        shift 2
    done
    exit "$code"
}
