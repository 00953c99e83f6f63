#!/usr/bin/env python3
"""Makes FOLDER/chats.jsonl, conversations for conversations.py, and the pictures that they show: letters and digits, of which the assistant
says what they are. The other conversations have no picture.

  scripts/data/make_chats.py data/chats"""

import argparse
import json
import unicodedata
from pathlib import Path

import apt_packages  # noqa: F401
import numpy as np
from glyphs import FACES, render
from PIL import Image

LETTERS, DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
PIXELS = (32, 48)  # sides of pictures


def name_of(character):
    """Returns "the letter A" or "the digit seven"."""
    return f"the letter {character}" if character in LETTERS else "the " + unicodedata.name(character).lower()


def with_picture(random, folder, path):
    character = str(random.choice(list(LETTERS + DIGITS)))
    picture = render(character, FACES[random.integers(3)], tuple(random.choice(PIXELS, 2)), tuple(random.integers(-2, 3, 2)))
    Image.fromarray(picture[:, :, 0]).save(folder / path)
    question = [{"type": "image", "image": path}, {"type": "text", "text": "Which character is in the picture?"}]
    return [question, f"It is {name_of(character)}."]


def without_picture(random):
    at = int(random.integers(1, 25))
    kind = random.integers(3)
    if kind == 0:
        return [f"Which letter follows {LETTERS[at]}?", f"{LETTERS[at + 1]} follows {LETTERS[at]}.", "And before it?", f"Before it is {LETTERS[at - 1]}."]
    if kind == 1:
        return [f"Write {at % 10} as a word.", unicodedata.name(DIGITS[at % 10]).split()[1].lower() + "."]
    return [f"Is {LETTERS[at]} a vowel?", f"{'Yes' if LETTERS[at] in 'AEIOU' else 'No'}, {LETTERS[at]} is a {'vowel' if LETTERS[at] in 'AEIOU' else 'consonant'}."]


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write, for example data/chats")
    parser.add_argument("--count", type=int, default=20, help="number of conversations (default: 20)")
    parser.add_argument("--pictures", type=float, default=0.5, metavar="X", help="share of them that have a picture; 0 for a model of text (default: 0.5)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.count < 1 or not 0 <= options.pictures <= 1:
        parser.error("--count is at least 1, and --pictures a share from 0 to 1")
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    random, folder = np.random.default_rng(options.seed), options.folder
    shown = round(options.count * options.pictures)
    (folder / "pictures" if shown else folder).mkdir(parents=True, exist_ok=True)
    lines = []
    for i, has_picture in enumerate(random.permutation([True] * shown + [False] * (options.count - shown))):
        texts = with_picture(random, folder, f"pictures/{i:04d}.png") if has_picture else without_picture(random)
        messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
        lines.append(json.dumps({"messages": messages}) + "\n")
    (folder / "chats.jsonl").write_text("".join(lines))
    print(f"{folder}/chats.jsonl: {options.count} conversations, {shown} of them with a picture")


if __name__ == "__main__":
    main()
