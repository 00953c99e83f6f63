#!/usr/bin/env python3
"""Writes FOLDER/generated.txt for the folders of make_families.py: what transformers generates greedily behind some prompts. A line has the ids
of a prompt, a colon, and the ids that follow it.

    pip install torch transformers safetensors numpy
    python3 make_generated.py [llama] [qwen3]"""

import pathlib
import sys

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
VOCABULARY, TOKENS, LEAST_DIFFERENT, LEAST_MARGIN = 48, 24, 7, 1e-3


def generate(model, prompt):
    """The ids behind the prompt, if the most likely token always leads by more than rounding can change, and few are repeated; otherwise None."""
    ids = torch.tensor([prompt])
    found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS, use_cache=True, eos_token_id=None,
                           pad_token_id=0, output_scores=True, return_dict_in_generate=True)  # fmt: skip
    best = torch.stack(found.scores).squeeze(1).topk(2).values
    tokens = found.sequences[0, len(prompt) :].tolist()
    return tokens if (best[:, 0] - best[:, 1]).min() > LEAST_MARGIN and len(set(tokens)) >= LEAST_DIFFERENT else None


def write(name):
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32, attn_implementation="eager").eval()
    rng, lines = np.random.default_rng(sum(name.encode())), []
    for length in (1, 3, 8, 21):
        while True:
            prompt = rng.integers(0, VOCABULARY, length).tolist()
            if tokens := generate(model, prompt):
                break
        lines.append(" ".join(map(str, prompt)) + " : " + " ".join(map(str, tokens)))
    (HERE / name / "generated.txt").write_text("\n".join(lines) + "\n")
    print(name, *lines, sep="\n  ")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for family in sys.argv[1:] or ("llama", "qwen3"):
        write(family)
