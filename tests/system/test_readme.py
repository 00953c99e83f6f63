"""The commands that README.md and docs/layouts.md show, as they show them, beside a copy of their directories."""

import os
import pathlib
import re
import subprocess

import pytest
from conftest import BINARY, ROOT, VLM

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def commands(document="README.md"):
    blocks = re.findall(r"```\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    # The two that do all are tested by hand, and data are there.
    return [line for line in lines if line and not line.startswith("scripts/") and "make_all" not in line]


@pytest.fixture(scope="module")
def clone(tmp_path_factory, data):
    """The repository's directories, its program, and two short runs under the names that README.md uses."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("inputs", "postproc", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "data").symlink_to(data)
    (folder / "build/cpu-release").mkdir(parents=True)
    (folder / "build/cpu-release/maestro").symlink_to(BINARY)
    for name in ("vlm_glyphs", "other"):
        run(folder, f"mpirun -n 4 {BINARY} train {VLM} --set train.steps=4 --set run.output=runs/{name}")
    return folder


def run(folder, command):
    result = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, **AS_ROOT, "PATH": "/usr/bin:/bin"}, text=True,
                            capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
    return result.stdout


def test_there_are_commands():
    words = " ".join(commands())
    assert all(word in words for word in ("maestro train", "maestro evaluate", "--resume auto", "maestro_postproc summary"))


def test_every_command_works(clone, pytestconfig):
    """As printed under --all, otherwise with a tenth of the steps."""
    shorter = "not nightly" in pytestconfig.getoption("markexpr")
    for command in commands():
        if shorter:
            command = re.sub(r"train\.steps=(\d+)0", r"train.steps=\1", command)
        assert run(clone, command).strip(), command
    assert (clone / "runs/short/exit.json").exists()


@pytest.mark.nightly
def test_every_layout_of_the_page_works(clone):
    for command in commands("docs/layouts.md"):
        assert run(clone, command).strip(), command
    assert (clone / "runs/layouts-6/exit.json").exists()


def test_every_path_exists():
    names = re.findall(r"`((?:src|inputs|scripts|docs|tests|postproc)/[\w./-]*)`", (ROOT / "README.md").read_text())
    links = re.findall(r"\]\(([\w./-]+)\)", (ROOT / "README.md").read_text())
    assert len(names) > 5 and len(links) > 5
    for name in [*names, *links]:
        assert pathlib.Path(ROOT / name).exists(), name
