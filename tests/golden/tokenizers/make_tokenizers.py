#!/usr/bin/env python3
"""Writes small tokenizers in the forms that Maestro turns back into text, and what the package tokenizers decodes.

    pip install tokenizers numpy
    python3 make_tokenizers.py

NAME.json         a tokenizer.json: byte_level as of Llama 3 and Qwen, byte_fallback as of Llama 2
NAME_cases.json   [{"ids": [...], "text": "..."}]: whole texts, texts cut after every token, and random ids"""

import json
import pathlib

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = ["Hello, world!", "Grüße aus Köln: 12 € für 3 Äpfel", "世界は 広い。", "def f(x):\n\treturn x ** 2\r\n", "🙂👩‍💻 done", "naïve  café…", "\x00\x1b[31m\x7f\u202e"]
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("終わり", special=False), AddedToken("two words", special=False)])
    return tokenizer


def byte_fallback():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(TEXTS[:2], trainers.BpeTrainer(vocab_size=320, special_tokens=pieces, show_progress=False))
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]  # bytes are ordinary tokens of a vocabulary
    return Tokenizer.from_str(json.dumps(document))


def write(name, tokenizer):
    document = json.loads(tokenizer.to_str())
    (HERE / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False, indent=0) + "\n")
    rng, size = np.random.default_rng(1), tokenizer.get_vocab_size(with_added_tokens=True)
    sequences = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        sequences += [ids] + [ids[:count] for count in range(1, len(ids), 3)]
    if name == "byte_level":
        sequences.append(tokenizer.encode("<|im_start|>user\nIch bin 終わりtwo words<|im_end|>").ids)
    sequences += [rng.integers(0, size, 12).tolist() for _ in range(24)]
    sequences += [rng.integers(0, 256, 8).tolist() for _ in range(24)]  # mostly bytes, which are mostly no characters
    cases = [{"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False)} for ids in sequences]
    (HERE / f"{name}_cases.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(name, size, "tokens,", len(cases), "cases,", sum("\ufffd" in case["text"] for case in cases), "with U+FFFD")


if __name__ == "__main__":
    write("byte_level", byte_level())
    write("byte_fallback", byte_fallback())
