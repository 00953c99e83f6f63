"""Training learns to read the pictures: the names come from them, not from the text around."""

import json

from conftest import VLM, mpirun


def test_glyphs_are_named_from_their_pictures(workspace):
    workspace.train(4, VLM, "learn", [], timeout=800)
    arguments = ("evaluate", VLM, "--checkpoint", "runs/learn")
    seen = mpirun(2, *arguments, cwd=workspace.path)
    exchanged = mpirun(2, *arguments, "--exchange-images", cwd=workspace.path)
    assert seen.returncode == 0 and exchanged.returncode == 0, seen.stderr + exchanged.stderr
    seen, exchanged = (json.loads(result.stdout.splitlines()[-1]) for result in (seen, exchanged))
    assert seen["exact_match"] >= 0.8 and exchanged["exact_match"] <= 0.05
