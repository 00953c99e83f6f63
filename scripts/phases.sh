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

# missing_packages WHO...: those of packages.txt for WHO that are not installed.
missing_packages() {
    local who package
    while read -r who package; do
        if [[ " $* " == *" $who "* && $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) != ii* ]]; then
            echo "$package"
        fi
    done <scripts/packages.txt
}

install_packages() {
    echo "installing $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -y -q --no-install-recommends "$@"
}

# need_packages WHO...: as root installs what is missing; otherwise names it and ends (69).
need_packages() {
    if ! command -v dpkg-query >/dev/null; then
        echo "This is not Debian: see that scripts/packages.txt is satisfied. Going on."
        return
    fi
    local missing
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]} == 0)); then
        echo "all packages are there"
    elif ((EUID == 0)); then
        install_packages "${missing[@]}"
    else
        printf 'These packages are missing: %s\nInstall them as root, then run this again:\n  apt-get install --no-install-recommends %s\n' \
            "${missing[*]}" "${missing[*]}" >&2
        exit 69
    fi
}

# want_packages WHO WHAT: as need_packages, but goes on without them and says that WHAT then do not run.
want_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$1")
    if ((${#missing[@]} == 0)); then return; fi
    if ((EUID != 0)) || ! install_packages "${missing[@]}"; then
        echo "without ${missing[*]}: $2 are skipped"
    fi
}

# want_python_packages FOLDER WHAT_FOR PACKAGE...: these, without what they depend on, in a folder of their own; says what will be
# missing if they cannot be had.
want_python_packages() {
    local folder=$1 what_for=$2
    shift 2
    if [[ -f $folder/packages.txt && $(<"$folder/packages.txt") == "$*" ]]; then
        echo "$* is there"
        return
    fi
    rm -rf "$folder"
    if ! python3 -m pip install -q --no-deps --disable-pip-version-check --root-user-action=ignore --target "$folder" "$@"; then
        echo "warning: no $*, so $what_for are left out: pip has to reach a package index, or $folder to hold it already" >&2
        rm -rf "$folder"
        return
    fi
    echo "$*" >"$folder/packages.txt"
}

# build OPTION...: configures and builds the preset cpu-release.
build() {
    cmake --preset cpu-release "$@"
    cmake --build --preset cpu-release --parallel "$cores"
}
