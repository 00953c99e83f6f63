#!/usr/bin/env bash
# Tests the GPU backend on this machine and writes gpu_check.json. docs/cuda.md describes the checks and requirements.
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! command -v python3 >/dev/null || ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
    echo "gpu_check.sh needs Python 3.9 or later as python3" >&2
    exit 78
fi
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$folder/gpu_check/main.py" "$@"
