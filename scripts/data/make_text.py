#!/usr/bin/env python3
"""Makes PREFIX.h5 and PREFIX-validation.h5: pieces of the licences that every Debian has, without pictures."""

import argparse

import apt_packages  # noqa: F401
import byte_tokens
import numpy as np
from licences import FOLDER as TEXTS
from licences import Pieces
from make_glyphs import text_sample
from sample_file import SampleWriter


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prefix", help="for example data/text-only")
    parser.add_argument("--train", type=int, default=6000, help="number of training samples")
    parser.add_argument("--validation", type=int, default=400, help="number of held-out samples")
    parser.add_argument("--text-bytes", default="64-128", help="length of a sample in bytes")
    parser.add_argument("--texts", default=TEXTS, help="folder of text files")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    try:
        shortest, longest = map(int, options.text_bytes.split("-"))
    except ValueError:
        parser.error("--text-bytes reads 64-128")
    if options.train < 1 or options.validation < 1:
        parser.error("--train and --validation are at least 1")
    random = np.random.default_rng(options.seed)
    for path, count, held_out in (
        (f"{options.prefix}.h5", options.train, False),
        (f"{options.prefix}-validation.h5", options.validation, True),
    ):
        pieces = Pieces(random, held_out, shortest, longest, folder=options.texts)
        writer = SampleWriter(path, vocabulary=byte_tokens.VOCABULARY, marker=byte_tokens.MARKER)
        for _ in range(count):
            writer.add(text_sample(pieces))
        writer.close()
        print(f"{path}: {len(writer)} samples", flush=True)


if __name__ == "__main__":
    main()
