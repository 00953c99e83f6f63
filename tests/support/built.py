"""The built program and the sample files of the decks of inputs/, for the tests that run the whole (pytest)."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Where scripts/test.sh has installed the packages that conversations.py needs, if it could.
PYTHON_PACKAGES = ROOT / "build/test/python"
BINARY = os.environ.get("MAESTRO_BINARY", str(ROOT / "build/cpu-release/maestro"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with the sample files that the decks of inputs/ name, to be read: that of MAESTRO_SAMPLES, otherwise a new one."""
    if "MAESTRO_SAMPLES" in os.environ:
        return pathlib.Path(os.environ["MAESTRO_SAMPLES"])
    folder = tmp_path_factory.mktemp("samples")
    subprocess.run([sys.executable, str(ROOT / "scripts/data/make_all.py"), "--folder", str(folder / "data")], check=True,
                   capture_output=True, text=True)
    return folder / "data"
