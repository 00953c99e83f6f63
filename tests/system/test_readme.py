"""The commands that README.md, docs/planning.md, docs/layouts.md and decks of model folders show, as they show them, in a fresh clone and with another
Python first on the path. Not those of set-up, scripts/quickstart.sh and scripts/test.sh: the fixture `clone` makes what they leave."""

import os
import pathlib
import re
import shutil
import subprocess

import h5py
import pytest
from built import PYTHON_PACKAGES
from conftest import BINARY, ROOT, VLM

FOLDERS = "Fine-tune a model folder"  # the section of README.md
FOLDER_DECKS = ["finetune_text", "distill_folders", "finetune_vl"]  # the second needs what the first makes
needs_packages = pytest.mark.skipif(not PYTHON_PACKAGES.exists(), reason="needs pip's tokenizers and jinja2, which scripts/test.sh installs")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def commands(document="README.md", section=None):
    """The commands of a section, or of all but FOLDERS."""
    parts = re.split(r"^## (.*)\n", (ROOT / document).read_text(), flags=re.MULTILINE)
    text = "".join(body for heading, body in zip(["", *parts[1::2]], parts[::2]) if (heading == section if section else heading != FOLDERS))
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith(("scripts/quickstart.sh", "scripts/test.sh"))]


def clone_into(folder):
    """Clones the repository, with what is not committed yet; copies what is no repository."""
    if not (shutil.which("git") and (ROOT / ".git").exists()):
        made = shutil.ignore_patterns("build*", "data", "models", "runs", ".git")
        shutil.copytree(ROOT, folder, ignore=lambda path, names: made(path, names) if pathlib.Path(path) == ROOT else {"__pycache__"})
        return
    git = ["git", "-c", "safe.directory=*"]
    subprocess.run([*git, "clone", "-q", str(ROOT), str(folder)], check=True, capture_output=True)
    changed = subprocess.run([*git, "-C", str(ROOT), "ls-files", "-z", "-m", "-o", "--exclude-standard"], check=True, capture_output=True, text=True)
    for name in filter(None, changed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@pytest.fixture(scope="module")
def clone(tmp_path_factory, data):
    """A clone with the built program, the sample files, a short run in the place of the quickstart's, and in bin/ a Python without packages."""
    folder = tmp_path_factory.mktemp("fresh") / "maestro"
    clone_into(folder)
    (folder / "data").mkdir()
    for path in data.iterdir():
        (folder / "data" / path.name).symlink_to(path)
    (folder / "build/cpu-release").mkdir(parents=True)
    (folder / "build/cpu-release/maestro").symlink_to(BINARY)
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).write_text('#!/bin/sh\nexec /usr/bin/python3 -I -S "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    run(folder, "! python3 -c 'import h5py' && echo lacks h5py")
    run(folder, f"mpirun --oversubscribe -n 4 {BINARY} train {VLM} --set train.steps=4 --set run.output=runs/vlm_glyphs")
    return folder


def install_packages(folder, command, shorter):
    """What README.md's pip command does; in short tests and without a package index the packages of scripts/test.sh take its place."""
    if (folder / "build/python").exists():
        return
    if shorter or subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL).returncode != 0:
        shutil.rmtree(folder / "build/python", ignore_errors=True)
        (folder / "build/python").symlink_to(PYTHON_PACKAGES)


def run(folder, command):
    path = f"{folder}/bin:/usr/bin:/bin"
    result = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, **AS_ROOT, "PATH": path}, text=True,
                            capture_output=True, timeout=600, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
    return result.stdout


def test_there_are_commands():
    words = " ".join(commands())
    assert all(word in words for word in ("maestro train", "maestro evaluate", "--resume auto", "maestro_postproc summary"))


@pytest.fixture
def shorter(pytestconfig):
    """Whether a fraction of the steps is enough: neither under --all nor in the first share of the nightly tests."""
    return "not nightly" in pytestconfig.getoption("markexpr") or not os.environ.get("MAESTRO_NIGHTLY_SHARE", "1").startswith("1")


def run_all(clone, lines, shorter):
    for command in lines:
        if "pip install" in command:
            install_packages(clone, command, shorter)
            continue
        if shorter:
            command = re.sub(r"train\.steps=(\d+)0", r"train.steps=\1", command)
        assert run(clone, command).strip(), command


@needs_packages
def test_a_model_folder_is_fine_tuned(clone, shorter):
    run_all(clone, commands(section=FOLDERS), shorter)
    before, after = (sorted(path.name for path in (clone / "models" / name).iterdir()) for name in ("small", "small-tuned"))
    assert after == before and (clone / "models/small-tuned/model.safetensors").stat().st_size > 1e6


def test_every_other_command_works(clone, shorter):
    run_all(clone, commands(), shorter)
    assert (clone / "runs/short/exit.json").exists()


def test_plans_of_the_page_work(clone):
    lines = [line for line in commands("docs/planning.md") if line not in commands()]
    assert lines
    for command in lines:
        assert run(clone, command).strip() or " > " in command, command


@needs_packages
def test_decks_of_model_folders_learn(clone, shorter):
    for deck in FOLDER_DECKS:
        lines = re.findall(r"^#.*?((?:PYTHONPATH=\S+ )?(?:/usr/bin/python3|mpirun|build/cpu-release/maestro) .*)", (ROOT / f"inputs/{deck}.toml").read_text(), re.MULTILINE)
        assert any("maestro train" in line for line in lines) and "maestro export" in lines[-1], deck
        lines = [f"{line} --set train.steps=30" if shorter and "maestro train" in line else line for line in lines]
        install_packages(clone, "false", shorter)
        run_all(clone, lines, False)
        with h5py.File(clone / f"runs/{deck}/metrics.h5") as file:
            losses = file["steps/loss"][:]
        assert losses[0] > 5 and losses[-1] < 0.2 * losses[0], deck


@pytest.mark.nightly
def test_every_layout_of_the_page_works(clone):
    for command in commands("docs/layouts.md"):
        assert run(clone, command).strip() or "make_all.py" in command, command  # the clone has the sample files
    assert (clone / "runs/layouts-6/exit.json").exists()


def test_every_path_exists():
    names = re.findall(r"`((?:src|inputs|scripts|docs|tests|postproc)/[\w./-]*)`", (ROOT / "README.md").read_text())
    links = re.findall(r"\]\(([\w./-]+)\)", (ROOT / "README.md").read_text())
    assert len(names) > 5 and len(links) > 5
    for name in [*names, *links]:
        assert pathlib.Path(ROOT / name).exists(), name
