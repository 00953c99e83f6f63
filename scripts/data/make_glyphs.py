#!/usr/bin/env python3
"""Makes PREFIX-train.h5 and PREFIX-validation.h5: pictures of Unicode characters, each with the character and its name as the
text to predict, mixed with text-only samples. No picture, compared by its pixels, is in both files."""

import argparse
import hashlib
import unicodedata

import apt_packages  # noqa: F401
import byte_tokens
import numpy as np
from glyphs import FACES, distinct, parse_characters, render
from licences import FOLDER as TEXTS
from licences import Pieces
from sample_file import COUNTS_FOR_EXACT_MATCH, Sample, SampleWriter

CHARACTER_WEIGHT = 10.0  # names have long common prefixes, so most of what there is to learn is in the character


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prefix", help="for example data/glyphs")
    parser.add_argument("--characters", default="digits,capitals", help="digits, capitals, letters, all, U+00C0-U+024F, xyz; comma-separated")
    parser.add_argument("--most", type=int, metavar="N", help="use the first N of the characters that all faces have")
    parser.add_argument("--faces", default=",".join(FACES[:3]), help="comma-separated; known are " + ", ".join(FACES))
    parser.add_argument("--sizes", default="24x24,28x26,32x32,30x36,40x36", help="HEIGHTxWIDTH of pictures in pixels, comma-separated")
    parser.add_argument("--shift", type=int, default=2, metavar="N", help="shift characters by up to N pixels from the middle")
    parser.add_argument("--train", type=int, default=12000, help="number of training samples")
    parser.add_argument("--validation", type=int, default=600, help="number of held-out samples")
    parser.add_argument("--pictures", type=float, default=0.5, help="fraction of the samples that have pictures")
    parser.add_argument("--several", type=float, default=0.25, help="fraction of these that have two or three")
    parser.add_argument("--text-bytes", default="64-128", help="length of text-only samples in bytes")
    parser.add_argument("--texts", default=TEXTS, help="folder of text files")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    try:
        options.sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",")]
        options.text_bytes = tuple(map(int, options.text_bytes.split("-")))
    except ValueError:
        parser.error("--sizes reads 24x24,32x28 and --text-bytes reads 64-128")
    if any(len(size) != 2 or not 8 <= min(size) <= max(size) <= 1024 for size in options.sizes):
        parser.error("--sizes: HEIGHTxWIDTH, 8 to 1024 pixels each")
    if not 0 <= options.shift <= min(map(min, options.sizes)) // 8:
        parser.error("--shift: 0 to an eighth of the smallest side, or characters leave the picture")
    if not (0 <= options.pictures <= 1 and 0 <= options.several <= 1 and len(options.text_bytes) == 2):
        parser.error("--pictures and --several are shares in [0, 1]; --text-bytes is FROM-TO")
    if options.train < 1 or options.validation < 1:
        parser.error("--train and --validation are at least 1")
    options.faces = options.faces.split(",")
    return options


class Renderings:
    """Pictures in an order that the seed determines. A picture is in one file only; a file that needs more than there are starts
    again with its first one."""

    def __init__(self, options, characters, random):
        self._characters, self._options = characters, options
        side = 2 * options.shift + 1
        self._shape = (len(characters), len(options.faces), len(options.sizes), side, side)
        self._order = random.permutation(int(np.prod(self._shape)))
        self._first = self._next = 0
        self._here, self._elsewhere = set(), set()

    def new_file(self):
        self._first = self._next
        self._elsewhere |= self._here
        self._here = set()

    def draw(self):
        left = self._order[self._first :]
        for _ in range(len(left)):
            at = left[(self._next - self._first) % len(left)]
            self._next += 1
            character, face, size, down, right = np.unravel_index(at, self._shape)
            shift = (int(down) - self._options.shift, int(right) - self._options.shift)
            picture = render(self._characters[character], self._options.faces[face], self._options.sizes[size], shift)
            key = hashlib.blake2b(repr(picture.shape).encode() + picture.tobytes(), digest_size=16).digest()
            if key not in self._elsewhere:
                self._here.add(key)
                return self._characters[character], picture
        raise SystemExit("no rendering is left for the second file: add --faces, --sizes or --shift, or lower --validation")


def picture_sample(renderings, random, several):
    count = int(random.integers(2, 4)) if random.random() < several else 1
    sample = Sample()
    sample.add([byte_tokens.BEGIN], weight=0.0)
    for i in range(count):
        if i > 0:
            sample.add(byte_tokens.encode("\n"))
        character, picture = renderings.draw()
        sample.add_picture(byte_tokens.MARKER, picture)
        sample.add(byte_tokens.encode(character), weight=CHARACTER_WEIGHT, flag=COUNTS_FOR_EXACT_MATCH)
        sample.add(byte_tokens.encode(" " + unicodedata.name(character)), flag=COUNTS_FOR_EXACT_MATCH)
    sample.add([byte_tokens.END])
    return sample


def text_sample(pieces):
    sample = Sample()
    sample.add([byte_tokens.BEGIN], weight=0.0)
    sample.add(byte_tokens.encode(pieces.draw()))
    sample.add([byte_tokens.END])
    return sample


def write(path, count, options, renderings, pieces, random):
    writer = SampleWriter(path, vocabulary=byte_tokens.VOCABULARY, marker=byte_tokens.MARKER)
    renderings.new_file()
    with_pictures = np.zeros(count, bool)
    with_pictures[: round(count * options.pictures)] = True
    for has_pictures in random.permutation(with_pictures):
        writer.add(picture_sample(renderings, random, options.several) if has_pictures else text_sample(pieces))
    writer.close()
    print(f"{path}: {len(writer)} samples", flush=True)


def main(arguments=None):
    options = parse_arguments(arguments)
    characters = distinct(parse_characters(options.characters), options.faces, options.most)
    if not characters:
        raise SystemExit(f"--characters {options.characters}: none has a name and a picture in every face")
    print(f"{len(characters)} characters in {len(options.faces)} faces", flush=True)
    random = np.random.default_rng(options.seed)
    renderings = Renderings(options, characters, random)
    # The validation file draws first, so that it does not depend on the size of the training file.
    for name, count in (("validation", options.validation), ("train", options.train)):
        pieces = Pieces(random, name == "validation", *options.text_bytes, folder=options.texts)
        write(f"{options.prefix}-{name}.h5", count, options, renderings, pieces, random)


if __name__ == "__main__":
    main()
