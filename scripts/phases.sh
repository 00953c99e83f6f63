# shellcheck shell=bash
# Sourced by quickstart.sh and test.sh: the repository as working directory, Debian's tools first, phases with their
# times, and the packages of packages.txt. Where a phase fails the exit code is that of its command.

# Other Pythons on the path lack h5py, other MPIs do not fit the one we build with.
export PATH="/usr/bin:/bin:$PATH" LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

cores=$(nproc)
phase_name="the start"

phase() {
    phase_name=$1
    printf '\n==> %s (%d min %02d s since the start)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60))
}

finish() {
    local code=$?
    if ((code != 0)); then
        printf '\n%s: failed in "%s" after %d s, exit code %d\n' "$(basename "$0")" "$phase_name" "$SECONDS" "$code" >&2
    fi
    exit "$code"
}
trap finish EXIT

# need_packages build [test]: as root installs those of packages.txt that are missing; otherwise names them and ends (69).
need_packages() {
    if ! command -v dpkg-query >/dev/null; then
        echo "This is not Debian: see that scripts/packages.txt is satisfied. Going on."
        return
    fi
    local wanted=() missing=() who package
    while read -r who package; do
        if [[ " $* " == *" $who "* ]]; then wanted+=("$package"); fi
    done <scripts/packages.txt
    for package in "${wanted[@]}"; do
        if [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) != ii* ]]; then missing+=("$package"); fi
    done
    if ((${#missing[@]} == 0)); then
        echo "all ${#wanted[@]} packages are there"
        return
    fi
    if ((EUID != 0)); then
        printf 'These packages are missing: %s\nInstall them as root, then run this again:\n  apt-get install --no-install-recommends %s\n' \
            "${missing[*]}" "${missing[*]}" >&2
        exit 69
    fi
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# build OPTION...: configures and builds the preset cpu-release.
build() {
    cmake --preset cpu-release "$@"
    cmake --build --preset cpu-release --parallel "$cores"
}
