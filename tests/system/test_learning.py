"""Training learns to read the pictures: the names come from them, not from the text."""

import json

from conftest import VLM, mpirun


def test_glyphs_are_named_from_their_pictures(workspace):
    # Nearly all of the deck's steps, which leaves room for the noise of training. The limit is for slow machines: a run that hangs ends
    # with 76 long before.
    workspace.train(4, VLM, "learn", ["train.steps=400", "optimizer.decay_steps=400"], timeout=2400)
    arguments = ("evaluate", VLM, "--checkpoint", "runs/learn")
    seen = mpirun(2, *arguments, cwd=workspace.path, timeout=600)
    exchanged = mpirun(2, *arguments, "--exchange-images", cwd=workspace.path, timeout=600)
    assert seen.returncode == 0 and exchanged.returncode == 0, seen.stderr + exchanged.stderr
    seen, exchanged = (json.loads(result.stdout.splitlines()[-1]) for result in (seen, exchanged))
    assert seen["exact_match"] >= 0.8 and exchanged["exact_match"] <= 0.05
