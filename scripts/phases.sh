# shellcheck shell=bash
# Sourced by quickstart.sh and test.sh. Changes to the repository, puts Debian's tools first on the path, and defines functions
# that name the phases of a script with their times, and that install the packages of packages.txt. A script that fails ends with
# the exit code of the command that failed.

# Other Pythons on the path lack h5py, and other MPIs do not match the one that we build with.
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

# missing_packages WHO...: prints the packages that packages.txt lists for WHO and that are not installed.
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

# need_packages WHO...: installs missing packages as root; another user is told their names, and the script ends (69).
need_packages() {
    if ! command -v dpkg-query >/dev/null; then
        echo "This is not Debian: make sure that the packages of scripts/packages.txt are installed. Going on."
        return
    fi
    local missing
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]} == 0)); then
        echo "all packages are installed"
    elif ((EUID == 0)); then
        install_packages "${missing[@]}"
    else
        printf 'These packages are missing: %s\nInstall them as root, then run this again:\n  apt-get install --no-install-recommends %s\n' \
            "${missing[*]}" "${missing[*]}" >&2
        exit 69
    fi
}

# want_packages WHO WHAT: like need_packages, but goes on without them and says that WHAT are skipped.
want_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$1")
    if ((${#missing[@]} == 0)); then return; fi
    if ((EUID != 0)) || ! install_packages "${missing[@]}"; then
        echo "without ${missing[*]}: $2 are skipped"
    fi
}

# want_python_packages FOLDER WHAT_FOR PACKAGE...: installs these Python packages, without their dependencies, into FOLDER. Where that
# fails it warns that WHAT_FOR are left out.
want_python_packages() {
    local folder=$1 what_for=$2
    shift 2
    if [[ -f $folder/packages.txt && $(<"$folder/packages.txt") == "$*" ]]; then
        echo "$* is installed"
        return
    fi
    rm -rf "$folder"
    if ! python3 -m pip install -q --no-deps --retries 1 --timeout 10 --disable-pip-version-check --root-user-action=ignore \
        --target "$folder" "$@"; then
        echo "warning: pip cannot install $* (does it reach a package index?), so $what_for are left out" >&2
        rm -rf "$folder"
        return
    fi
    echo "$*" >"$folder/packages.txt"
}

# build OPTION...: configures and builds the preset cpu-release, with what makes a first build faster.
build() {
    cmake --preset cpu-release -DMAESTRO_PCH=ON -DMAESTRO_UNITY=ON "$@"
    cmake --build --preset cpu-release --parallel "$cores"
}
