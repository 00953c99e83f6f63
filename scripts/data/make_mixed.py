#!/usr/bin/env python3
"""Makes a sample file for simulations and emulated clusters, where only sizes matter: texts and pictures of log-normal size, filled
with noise."""

import argparse
import math

import apt_packages  # noqa: F401
import byte_tokens
import numpy as np
from sample_file import LARGEST_PICTURE, Sample, SampleWriter


def sizes(random, count, mean, sigma):
    """Draws `count` log-normal sizes with this mean."""
    return mean * np.exp(random.normal(-sigma * sigma / 2, sigma, count))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="for example data/mixed.h5")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--share", type=float, default=1 / 3, help="fraction of the samples that have a picture")
    parser.add_argument("--tokens", type=float, default=800, help="mean length of a text in tokens")
    parser.add_argument("--pixels", type=float, default=150e3, help="mean area of a picture in pixels")
    parser.add_argument("--sigma", type=float, default=0.6, help="standard deviation of the logarithms of lengths and areas")
    parser.add_argument("--longest", type=int, default=4096, help="largest length of a text in tokens; longer ones are cut")
    parser.add_argument("--largest", type=int, default=896, help="largest side of a picture in pixels")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.samples < 1 or not 0 <= options.share <= 1 or not 0 <= options.sigma <= 3:
        parser.error("--samples is at least 1, --share from 0 to 1, --sigma from 0 to 3")
    if not 2 <= options.longest or not 1 <= options.largest <= LARGEST_PICTURE or options.tokens < 1 or options.pixels < 1:
        parser.error(f"--longest must be at least 2, --largest from 1 to {LARGEST_PICTURE}, --tokens and --pixels at least 1")
    random = np.random.default_rng(options.seed)
    tokens = sizes(random, options.samples, options.tokens, options.sigma)
    areas = sizes(random, options.samples, options.pixels, options.sigma)
    shapes = random.uniform(-0.3, 0.3, options.samples)  # half the logarithm of height over width
    lots = random.permutation(options.samples)  # the samples with pictures of a small share also have them with a larger one
    writer = SampleWriter(options.file, vocabulary=byte_tokens.VOCABULARY, marker=byte_tokens.MARKER)
    for i in range(options.samples):
        sample = Sample()
        sample.add([byte_tokens.BEGIN], weight=0.0)
        if lots[i] < round(options.share * options.samples):
            side = math.sqrt(areas[i])
            height, width = (min(options.largest, max(1, round(side * math.exp(sign * shapes[i])))) for sign in (1, -1))
            sample.add_picture(byte_tokens.MARKER, random.integers(0, 256, (height, width, 1), dtype=np.uint8))
        length = min(options.longest, max(2, round(tokens[i])))
        sample.add(random.integers(0, 256, length - 1).tolist())
        writer.add(sample)
    writer.close()
    print(f"{options.file}: {len(writer)} samples", flush=True)


if __name__ == "__main__":
    main()
