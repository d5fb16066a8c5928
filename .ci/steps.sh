# The functions that .ci/run and .ci/nightly share. Both source this file and call `main`.
#
# A step is a function `step_NAME`. It runs in a separate process, in a copy of the checkout without
# ignored files, and in separate virtual environments, so it depends on nothing that is installed or
# compiled in the checkout. A step that fails does not stop the others.
#
# Variables:
#   CI=true (the default)     tests fail if a program that they need is missing, instead of being skipped
#   TENSORWIRE_LEFT_OUT       names of programs whose tests are skipped nevertheless
#   TENSORWIRE_OUTPUT         a folder for what the steps build (sdist, wheel, manual) or measure
#   TENSORWIRE_TEST_SCALE     factor of sizes and counts (tests/support/scale.py)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export CI="${CI:-true}" TENSORWIRE_LEFT_OUT="${TENSORWIRE_LEFT_OUT:-}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off
export PIP_NO_COMPILE=0 # this turns --no-compile on; Python compiles a module when it is imported
export TENSORWIRE_TRITON="${TENSORWIRE_TRITON:-$root/.triton}"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/tensorwire.XXXXXX")
output=$(mkdir -p "${TENSORWIRE_OUTPUT:=$scratch/output}" && cd "$TENSORWIRE_OUTPUT" && pwd)
background=
trap '[ -z "$background" ] || kill -- "-$background" 2>/dev/null || true; rm -rf "$scratch"' EXIT

# --- running steps --------------------------------------------------------------------------------

main() { # [-2] STEP ...: run the steps, with -2 in two processes, and print a summary
    local is_double=
    if [ "$1" = -2 ]; then
        is_double=1
        shift
    fi
    local step
    for step in "$@"; do
        if ! declare -F "step_$step" >/dev/null; then
            echo "$0: there is no step '$step'; the steps are: $(declare -F | sed -n 's/^declare -f step_//p' | xargs)" >&2
            exit 2
        fi
    done
    if [ -n "$is_double" ]; then
        set -m # a process group of its own, which the trap can stop
        (
            trap - EXIT
            renice -n 10 -p "$BASHPID" >/dev/null # the tests of the other process measure time
            run_steps second $(printf '%s\n' "$@" | tac) >/dev/null
        ) &
        background=$!
        set +m
    fi
    run_steps first "$@"
    if [ -n "$is_double" ]; then
        wait "$background" || true
        background=
        for step in "$@"; do
            [ "$(cat "$scratch/$step.process")" = first ] || cat "$scratch/$step.log"
        done
    fi
    summary "$@"
}

run_steps() { # PROCESS STEP ...: run the steps that no other process has begun
    local copy="$scratch/$1" step
    copy_checkout "$copy"
    cd "$copy"
    for step in "${@:2}"; do
        if mkdir "$scratch/$step.begun" 2>/dev/null; then
            echo "$1" >"$scratch/$step.process"
            run_step "$step"
        fi
    done
}

run_step() { # STEP: run it; keep its output, exit code and times
    local code=0 TIMEFORMAT='%R %U %S'
    set +e # in a condition, the step itself would ignore `set -e`
    {
        time (
            set -e
            printf '\n=== %s (%s)\n' "$1" "$(date +%T)"
            "step_$1"
        ) 2>&1 | tee "$scratch/$1.log"
    } 2>"$scratch/$1.times"
    code=$?
    set -e
    echo "$code" >"$scratch/$1.code"
}

summary() { # STEP ...: print a line for each step, and exit with 1 if one has failed
    local step code failed=0 wall user system
    printf '\n=== summary: step, result, elapsed and CPU seconds\n'
    for step in "$@"; do
        code=$(cat "$scratch/$step.code" 2>/dev/null || echo missing)
        read -r wall user system < <(tail -n 1 "$scratch/$step.times")
        [ "$code" = 0 ] || failed=1
        printf '%-12s %-10s %6.0f %6.0f  %s\n' "$step" "$([ "$code" = 0 ] && echo passed || echo "FAILED ($code)")" \
            "$wall" "$(python3 -c "print($user + $system)")" \
            "$(grep -E '[0-9]+ (passed|failed|errors?)\b.* in ' "$scratch/$step.log" | tail -n 1)"
    done
    exit "$failed"
}

copy_checkout() { # FOLDER: copy all files of the checkout except ignored ones
    mkdir "$1"
    git -C "$root" ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do
            if [ -e "$root/$file" ]; then printf '%s\0' "$file"; fi
        done | tar -C "$root" --null -T - -c | tar -C "$1" -x
    git -C "$1" init -q -b copy
    git -C "$1" add -A # linters list the files with git
}

# --- what steps need ------------------------------------------------------------------------------

say() { printf '\n--- %s (%s)\n' "$*" "$(date +%T)"; }

debian() { # PROGRAM PACKAGE ...: install the packages, unless the program is there
    command -v "$1" >/dev/null && return
    local sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends "${@:2}" >/dev/null
}

is_left_out() { [[ " $TENSORWIRE_LEFT_OUT " = *" $1 "* ]]; }

readme() { # END: run the command in README.md that ends with END
    rm -rf .venv
    bash -euxc "$(grep -E "^python3 -m venv .*$1\$" README.md)"
}

environment() { # EXTRA ...: .venv with the requirements of the extras, but not tensorwire itself
    [ -x .venv/bin/python ] || python3 -m venv .venv
    python3 - "$@" >"$scratch/requirements-$*.txt" <<'END'
import re, sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
extras = project["project"]["optional-dependencies"]
def requirements(extra):
    for text in extras[extra]:
        own = re.fullmatch(r"tensorwire\[(.*)\]", text)  # an extra that includes others
        for other in own[1].split(",") if own else ():
            yield from requirements(other)
        if not own:
            yield text
wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
for extra in sys.argv[1:]:
    wanted += requirements(extra)
print("\n".join(wanted))
END
    .venv/bin/pip install -q -r "$scratch/requirements-$*.txt"
}

package() { # [VARIABLE=VALUE ...]: compile tensorwire and install it in .venv, unless it is there
    .venv/bin/python -c "import tensorwire" 2>/dev/null ||
        env "$@" .venv/bin/pip install -q --no-deps --no-build-isolation --no-cache-dir .
}

compile_into() { # FOLDER VARIABLE=VALUE ...: compile tensorwire and install it in a folder
    env "${@:2}" .venv/bin/pip install -q --no-deps --no-build-isolation --no-cache-dir --target "$1" .
}

# Tests of the codec, which need only the package, pytest, hypothesis, ml_dtypes and msgspec.
codec_tests=(tests/test_{decode,encode,encode_errors,limits,header_length,ownership}.py
    tests/test_{bytes_encode,bytes_strings,bytes_array,json_reader,json_decimals,json_writer}.py)
codec_packages=(pytest hypothesis ml_dtypes msgspec)

sanitized() { # PYTEST-ARGUMENT ...: tests under AddressSanitizer and UndefinedBehaviorSanitizer
    environment dev
    say "build with the sanitizers"
    compile_into "$scratch/sanitized" TENSORWIRE_SANITIZE=1
    say "tests"
    PYTHONPATH="$scratch/sanitized" LD_PRELOAD=$(gcc -print-file-name=libasan.so) PYTHONMALLOC=malloc \
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1 \
        .venv/bin/python -m pytest -q "$@"
}
