#!/usr/bin/env python3
"""Makes the sample files of the decks in inputs/: those that are missing in data/, or all with --force."""

import argparse
from pathlib import Path

import make_glyphs
import make_mixed
import make_text

# Samples of unlike cost, so that it matters which replica gets which: texts of 32 to 384 bytes, and mostly several pictures.
SMALL = ["--pictures", "0.8", "--several", "0.75", "--text-bytes", "32-384"]
# All six faces of fonts-dejavu-core, and characters that all of them have; the names of such characters are long.
LARGE = ["--characters", "letters,digits,U+00A1-U+024F,U+0370-U+04FF,U+1E00-U+1EFF", "--most", "300",
         "--faces", ",".join(make_glyphs.FACES), "--train", "40000", "--validation", "2000"]  # fmt: skip


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also data/glyphs-large: 300 characters in six faces")
    parser.add_argument("--folder", default="data", help="folder to write to (default: data)")
    parser.add_argument("--force", action="store_true", help="make existing files again")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    folder, seed = Path(options.folder), ["--seed", str(options.seed)]

    def absent(*names):
        return options.force or not all((folder / name).is_file() for name in names)

    if absent("glyphs-train.h5", "glyphs-validation.h5"):
        make_glyphs.main([str(folder / "glyphs"), *SMALL, *seed])
    if absent("text-only.h5", "text-only-validation.h5"):
        make_text.main([str(folder / "text-only"), *seed])
    if absent("mixed.h5"):
        make_mixed.main([str(folder / "mixed.h5"), *seed])
    if options.large and absent("glyphs-large-train.h5", "glyphs-large-validation.h5"):
        make_glyphs.main([str(folder / "glyphs-large"), *LARGE, *seed])


if __name__ == "__main__":
    main()
