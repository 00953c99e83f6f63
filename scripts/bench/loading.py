#!/usr/bin/env python3
"""Measures memory and time of loading a model folder on one rank and on four, on a folder with random weights that this script makes: a
language model of family qwen3 of some GB in bf16, in several files. The files are in the page cache, and then, with --cold, in storage.

    cmake --preset cpu-release -DMAESTRO_BENCH=ON && cmake --build --preset cpu-release --target folder_bench
    scripts/bench/loading.py
"""

import argparse
import json
import os
import pathlib

import numpy as np
from runs import ROOT, call

BENCH = os.environ.get("FOLDER_BENCH", str(ROOT / "build/cpu-release/folder_bench"))
LAYOUTS = [(1, 1, 1), (1, 1, 2), (4, 1, 1), (1, 4, 1), (2, 2, 1)]  # tp, pp and threads
WIDTH, HEADS, KV_HEADS, HEAD, MLP, VOCABULARY = 1024, 16, 8, 128, 3072, 151936  # as in Qwen3-0.6B


def shapes(layers):
    """Yields the names and shapes of all tensors."""
    yield "model.embed_tokens.weight", (VOCABULARY, WIDTH)
    for n in range(layers):
        layer, queries, keys = f"model.layers.{n}.", HEADS * HEAD, KV_HEADS * HEAD
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", (WIDTH,)
        for name in ("q_norm", "k_norm"):
            yield f"{layer}self_attn.{name}.weight", (HEAD,)
        for name, rows, columns in (("q", queries, WIDTH), ("k", keys, WIDTH), ("v", keys, WIDTH), ("o", WIDTH, queries)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, columns)
        for name, rows, columns in (("gate", MLP, WIDTH), ("up", MLP, WIDTH), ("down", WIDTH, MLP)):
            yield f"{layer}mlp.{name}_proj.weight", (rows, columns)
    yield "model.norm.weight", (WIDTH,)


def write_file(path, tensors, values):
    header, at = {}, 0
    for name, shape in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at := at + 2 * int(np.prod(shape))]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in tensors:
            for left in range(int(np.prod(shape)), 0, -len(values)):
                values[:left].tofile(file)


def make_folder(folder, layers, files):
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "qwen3", "hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
              "head_dim": HEAD, "intermediate_size": MLP, "vocab_size": VOCABULARY, "tie_word_embeddings": True, "rope_theta": 1e6}
    (folder / "config.json").write_text(json.dumps(config))
    normal = 0.02 * np.random.default_rng(1).standard_normal(1 << 24, np.float32)
    values = (normal.view(np.uint32) >> 16).astype(np.uint16)  # bf16
    tensors = list(shapes(layers))
    sizes = np.cumsum([int(np.prod(shape)) for _, shape in tensors])
    numbers = np.minimum((sizes - 1) * files // sizes[-1], files - 1)
    names = [f"model-{number + 1:05}-of-{files:05}.safetensors" for number in numbers]
    for name in dict.fromkeys(names):
        write_file(folder / name, [tensor for tensor, of in zip(tensors, names) if of == name], values)
    index = {"metadata": {"total_size": 2 * int(sizes[-1])}, "weight_map": {tensor: of for (tensor, _), of in zip(tensors, names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="also measure from storage: the files leave the page cache before each read")
    parser.add_argument("--folder", default="runs/bench-loading", help="where the model is made, unless it is there already")
    options = parser.parse_args()
    folder = ROOT / pathlib.Path(options.folder)
    if not (folder / "model.safetensors.index.json").exists():
        make_folder(folder, options.layers, options.files)
    for cold in ([], ["cold"]) if options.cold else ([],):
        for tp, pp, threads in LAYOUTS:
            for precision in ("fp32", "bf16"):
                print(call(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(tp * pp), BENCH, str(folder), str(tp),
                            str(pp), precision, str(options.rounds), str(threads), *cold]), end="", flush=True)


if __name__ == "__main__":
    main()
