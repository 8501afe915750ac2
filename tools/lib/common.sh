# shellcheck shell=bash disable=SC2034
# Sourced by the scripts in tools/ and .ci/: where the project is, what it needs installed, how it is configured.
# After sourcing, the working directory is the project's root.

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

# What a build with g++, and its tests and benchmarks, need of Debian 12.
build_packages=(g++ cmake ninja-build git gcc-offload-nvptx libomp-dev libeigen3-dev libgtest-dev libbenchmark-dev
    libcli11-dev nlohmann-json3-dev libfmt-dev)
# What flashomp::mpi and its tests need besides.
mpi_packages=(libopenmpi-dev openmpi-bin)
# What tools/report, which draws the figures, and its test need besides.
report_packages=(python3 python3-matplotlib)
# What builds programs against an installed or packed library, in the tests of CI.
consumer_packages=(gfortran pkg-config dpkg-dev)
# What looks at the figures: the test scripts.figure_boxes.
figure_packages=(chromium)
# What tools/test_python needs besides.
python_packages=(python3-venv python3-dev)

say() { printf '\n== %s\n' "$*"; }

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 2
}

# expect_nvcc PATH: says so where the path is empty; in CI that is a failure.
expect_nvcc() {
    if [[ -n $1 ]]; then
        return
    fi
    say "no nvcc here, so the CUDA backend is not compiled"
    if [[ -n ${CI-} && ${CI-} != false ]]; then
        fail "nvcc is missing, and CI=$CI asks for everything; install NVIDIA's package cuda-toolkit, 12 or newer."
    fi
}

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# install_packages NAME...: installs those Debian packages that are missing and says which; does nothing when none is.
install_packages() {
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        say "no apt-get here, so nothing is installed; these Debian packages or their like must be there: $*"
        return
    fi
    local missing=() name
    for name in "$@"; do
        is_installed "$name" || missing+=("$name")
    done
    if ((${#missing[@]} == 0)); then
        return
    fi
    local as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail "these Debian packages are missing: ${missing[*]}; install them as root."
        as_root=(sudo)
    fi
    say "installing Debian packages: ${missing[*]}"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" \
        >/dev/null
}

# configure PRESET [OPTION...]: silent about what CMake finds each time, but not about what is built, nor about errors.
configure() {
    local log
    if ! log=$(cmake --preset "$@" 2>&1); then
        printf '%s\n' "$log" >&2
        exit 1
    fi
    say "configured build/$1"
    sed -n '/flashomp [0-9]/,/sanitizers/s/^-- //p' <<<"$log"
}

# print_verdict: CTest's, of the last run of tools/test; after it CTest lists the tests that were skipped.
print_verdict() { grep -E 'tests passed, [0-9]+ tests? failed out of|^No tests were found' build/release/ctest.log; }
