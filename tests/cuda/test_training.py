"""The program trains on a GPU that is not there, with the losses of the CPU."""

import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from built import BINARY, ROOT, data  # noqa: E402, F401  (data is a fixture)

HOSTED = os.environ.get("MAESTRO_HOSTED", str(ROOT / "build/cpu-release/maestro_hosted"))
STEPS, TOLERANCE = 2, 1e-5


def train(folder, program, ranks, *values):
    """Loss and norm of the gradient of every step."""
    output = f"runs/{len(list(folder.glob('runs/*')))}"
    words = [word for value in (f"train.steps={STEPS}", f"run.output={output}", f"checkpoint.every={STEPS}", *values) for word in ("--set", value)]
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), program, "train", str(ROOT / "inputs/vlm_glyphs.toml"), *words],
                          cwd=folder, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    with h5py.File(folder / output / "metrics.h5") as file:
        assert len(file["steps"]["loss"]) == STEPS
        return np.array([file["steps"][key][:] for key in ("loss", "grad_norm")])


@pytest.mark.parametrize(("ranks", "values"), [(1, ["section.language.colocate_with=vision", "section.language.layout.dp=1"]), (4, [])])
def test_losses_are_the_cpus(tmp_path, data, ranks, values):  # noqa: F811
    (tmp_path / "data").symlink_to(data)
    expected = train(tmp_path, BINARY, ranks, *values, "run.device=cpu")
    found = train(tmp_path, HOSTED, ranks, *values, "run.device=cuda")
    apart = np.max(np.abs(found - expected) / np.abs(expected))
    print(f"{ranks} ranks: {apart:.1e}")
    assert apart <= TOLERANCE
