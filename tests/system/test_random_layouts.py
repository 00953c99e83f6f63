"""Random graphs in random layouts end, without a hang, with the numbers of one rank; every other one with delayed messages.

MAESTRO_RANDOM_LAYOUTS says how many, MAESTRO_RANDOM_FIRST the first seed. What a seed makes: random_decks.py SEED.
"""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import random_decks
from conftest import BINARY, ROOT

FIRST, COUNT = int(os.environ.get("MAESTRO_RANDOM_FIRST", 1)), int(os.environ.get("MAESTRO_RANDOM_LAYOUTS", 60))


@pytest.fixture(scope="module")
def place(tmp_path_factory, data):
    """A directory with samples and the shim; keeps the references."""
    folder = tmp_path_factory.mktemp("random")
    (folder / "data").symlink_to(data)
    tool = lambda name, *words: subprocess.run([sys.executable, str(ROOT / "scripts/data" / name), *words], check=True, cwd=folder,  # noqa: E731
                                               capture_output=True)
    tool("make_glyphs.py", "few", "--pictures", "0.1", "--train", "64", "--validation", "8")
    (folder / "few-train.h5").rename(folder / "few.h5")
    tool("make_mixed.py", "sizes.h5", "--samples", "64", "--share", "0.4", "--tokens", "20", "--pixels", "3000", "--longest", "80", "--largest", "128")
    subprocess.run(["mpicc", "-shared", "-fPIC", "-o", "delay_shim.so", str(ROOT / "tests/system/delay_shim.c"), "-ldl"], check=True, cwd=folder)
    return folder


def train(folder, name, ranks, deck, exports=()):
    (folder / f"{name}.toml").write_text(deck)
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", *(word for e in exports for word in ("-x", e)), "-n", str(ranks), BINARY, "train",
             f"{name}.toml", "--set", f"run.output=runs/{name}"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{name}: exit {done.returncode} on {ranks} ranks\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{deck}"
    with h5py.File(folder / f"runs/{name}/metrics.h5") as file:
        return {key: file["steps"][key][:] for key in ("loss", "grad_norm")}


references = {}


FOUND = [135, 219]  # once short of scratch: a slice in which more rows predict than in the one that memory was planned by
CASES = [pytest.param(seed, seed // 4, marks=pytest.mark.nightly if (seed - FIRST) % 7 else []) for seed in range(FIRST, FIRST + COUNT)]
CASES += [pytest.param(seed, None, marks=pytest.mark.nightly) for seed in FOUND if "MAESTRO_RANDOM_FIRST" not in os.environ]


@pytest.mark.parametrize(("seed", "problem"), CASES)
def test_random_layout(place, seed, problem):
    numbers, ranks, deck = random_decks.draw(seed, problem)
    if numbers not in references:
        references[numbers] = train(place, f"reference-{len(references)}", 1, random_decks.reference(numbers))
    exports = [f"LD_PRELOAD={place / 'delay_shim.so'}", f"SHIM_SEED={seed}"] if seed % 2 else []
    found = train(place, f"seed-{seed}-of-{problem}", ranks, deck, exports)
    for key, value in found.items():
        apart = np.max(np.abs(value - references[numbers][key]) / np.abs(references[numbers][key]))
        print(f"seed {seed}: {ranks} ranks, {key} {apart:.1e}")
        # A row whose choice of experts is nearly a tie may choose another one.
        assert apart <= (1e-4 if "experts" in deck else 1e-5), f"seed {seed}: {key} {apart:.1e} on {ranks} ranks\n{deck}"
