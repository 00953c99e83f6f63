"""A byte-level BPE tokenizer in the form of tokenizer.json, with merges learned from a text. It needs no package."""

import re
from collections import Counter

# What Qwen's and Llama 3's tokenizers split text into before merging.
QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_SPLIT = QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")


def _byte_names():
    """Returns the character that stands for each byte: itself where it can be seen, otherwise one from U+0100 on (as in GPT-2)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {**{byte: chr(byte) for byte in visible}, **{byte: chr(0x100 + i) for i, byte in enumerate(others)}}


def learn_merges(text, count):
    """Returns up to `count` pairs of tokens, the most frequent first, within words of ASCII letters."""
    names = _byte_names()
    words = Counter(re.findall(r" ?[A-Za-z]+", text))
    words = [([names[byte] for byte in word.encode()], times) for word, times in sorted(words.items())]
    merges = []
    while len(merges) < count:
        pairs = Counter()
        for symbols, times in words:
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] < 2:
            break
        merges.append(best)
        for symbols, _ in words:
            at = 0
            while at + 1 < len(symbols):
                if (symbols[at], symbols[at + 1]) == best:
                    symbols[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def tokenizer_json(merges, special, others=(), *, split=QWEN_SPLIT, begin=None):
    """Returns the contents of tokenizer.json. Ids are bytes, merges, `special` tokens and `others` that are no special ones, in this order.
    `begin` is a token that starts every text."""
    pieces = [*_byte_names().values(), *map("".join, merges)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    added = [{"id": len(vocabulary) + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": token in special} for i, token in enumerate((*special, *others))]  # fmt: skip
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    after = bytes_only
    if begin is not None:
        number = next(token["id"] for token in added if token["content"] == begin)
        first = {"SpecialToken": {"id": begin, "type_id": 0}}
        a, b = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
        template = {"type": "TemplateProcessing", "single": [first, a], "pair": [first, a, {"SpecialToken": {"id": begin, "type_id": 1}}, b],
                    "special_tokens": {begin: {"id": begin, "ids": [number], "tokens": [begin]}}}  # fmt: skip
        after = {"type": "Sequence", "processors": [bytes_only, template]}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if begin is None else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}, bytes_only]},
        "post_processor": after, "decoder": bytes_only,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": begin is not None, "vocab": vocabulary,
                  "merges": [list(pair) for pair in merges]},
    }  # fmt: skip
