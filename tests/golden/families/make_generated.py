#!/usr/bin/env python3
"""Writes FOLDER/generated.txt for the folders of make_families.py: what transformers generates greedily behind some prompts. A line has the ids
of a prompt, a colon, and the ids that follow it. A prompt with pictures has one image token for each, and a second colon with their sizes: height,
width, height, ... Byte i of picture p, of its [height, width, 3], is (5 i^2 + 31 i + 17 p) mod 256.

    pip install torch transformers safetensors numpy
    python3 make_generated.py [FAMILY ...]"""

import pathlib
import sys

import numpy as np
import torch
import transformers
from make_families import FAMILIES, IMAGE, PATCH, VIDEO, VISION_END, VISION_START, forward, patches

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


def generate_from_pictures(model, prompt, pictures):
    """The same behind a prompt with pictures, by a pass over the whole sequence for every token. `generate`, with a cache, gives the same, but not
    where a picture is the last of the prompt: transformers 5.24 counts on from the position of its last row along each axis, and in a pass over
    the whole sequence from the largest."""
    tokens, least = list(prompt), np.inf
    for _ in range(TOKENS):
        logits = forward(model, torch.tensor(tokens), pictures)[0][-1]
        best = logits.topk(2)
        least = min(least, (best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
        if tokens[-1] in (IMAGE, VIDEO):
            return None
    found = tokens[len(prompt) :]
    ids = list(prompt)
    for p in reversed([at for at, i in enumerate(prompt) if i == IMAGE]):
        picture = pictures[prompt[:p].count(IMAGE)]
        ids[p : p + 1] = [IMAGE] * (picture.shape[0] * picture.shape[1] // (2 * PATCH) ** 2)
    ids = torch.tensor([ids])
    grid = torch.tensor([[1, p.shape[0] // PATCH, p.shape[1] // PATCH] for p in pictures])
    model.model.rope_deltas = None  # of an earlier prompt; `generate` would go on with its positions
    cached = model.generate(ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == IMAGE).long(), image_grid_thw=grid, do_sample=False,
                            pixel_values=torch.cat([patches(p) for p in pictures]).to(torch.float32), max_new_tokens=TOKENS, use_cache=True, eos_token_id=None, pad_token_id=0)  # fmt: skip
    if least < LEAST_MARGIN or len(set(found)) < LEAST_DIFFERENT:
        return None
    assert (cached[0, ids.shape[1] :].tolist() == found) == (prompt[-1] != IMAGE)
    return found


def picture_of(number, size):
    i = np.arange(size[0] * size[1] * 3, dtype=np.int64)
    return ((5 * i * i + 31 * i + 17 * number) % 256).astype(np.uint8).reshape(*size, 3)


def write_with_pictures(name):
    model = transformers.AutoModelForImageTextToText.from_pretrained(HERE / name, dtype=torch.float32, attn_implementation="eager").eval()
    rng, lines = np.random.default_rng(1), []
    # The rows and columns of a picture, its place, and what follows it decide on the positions of the answer.
    for sizes, after in (([(16, 24)], 2), ([(8, 32), (24, 8)], 1), ([(24, 16)], 0), ([(32, 16), (8, 8)], 4)):
        pictures = [picture_of(p, size) for p, size in enumerate(sizes)]
        while True:
            prompt = rng.integers(0, VIDEO, 2).tolist()
            for _ in sizes:
                prompt += [VISION_START, IMAGE, VISION_END, *rng.integers(0, VIDEO, after).tolist()]
            if after == 0:
                prompt.pop()  # a picture is the last of the prompt
            if tokens := generate_from_pictures(model, prompt, pictures):
                break
        words = (prompt, tokens, [side for size in sizes for side in size])
        lines.append(" : ".join(" ".join(map(str, each)) for each in words))
    (HERE / name / "generated.txt").write_text("\n".join(lines) + "\n")
    print(name, *lines, sep="\n  ")


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
    for family in sys.argv[1:] or FAMILIES:
        (write_with_pictures if any(FAMILIES[family]["sizes"]) else write)(family)
