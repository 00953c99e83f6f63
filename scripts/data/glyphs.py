"""Renders characters with the DejaVu fonts, and selects characters whose pictures differ from each other."""

import unicodedata
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

FOLDER = Path("/usr/share/fonts/truetype/dejavu")
FACES = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold", "DejaVuSerif-Bold", "DejaVuSansMono-Bold")
_PAPER, _INK = 255, 0
_ABSENT = "\U0010ffff"


@lru_cache(maxsize=None)
def _font(face, pixels):
    path = FOLDER / f"{face}.ttf"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.ttf"))) or "none; apt-get install fonts-dejavu-core"
        raise SystemExit(f"{path} is missing; faces here: {known}")
    # The basic layout gives the same pixels with and without libraqm.
    return ImageFont.truetype(str(path), pixels, layout_engine=ImageFont.Layout.BASIC)


def render(character, face, size, shift):
    """Returns uint8 [height, width, 1]: the character in the middle of a picture of size (height, width), on the common
    baseline of the face, shifted by (down, right) pixels."""
    height, width = size
    font = _font(face, max(6, round(0.8 * min(size))))
    ascent, descent = font.getmetrics()
    image = Image.new("L", (width, height), _PAPER)
    at = (width // 2 + shift[1], (height + ascent - descent) // 2 + shift[0])
    ImageDraw.Draw(image).text(at, character, fill=_INK, font=font, anchor="ms")
    return np.asarray(image, dtype=np.uint8)[:, :, None]


def parse_characters(text):
    """Expands "digits,capitals,U+00C0-U+024F,xyz" to its characters in this order, without duplicates."""
    named = {
        "digits": "0123456789",
        "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "letters": "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        "all": "".join(map(chr, range(0x21, 0x2C00))),
    }
    characters = []
    for part in text.split(","):
        if part in named:
            characters.extend(named[part])
        elif part.startswith("U+"):
            try:
                first, _, last = part.partition("-")
                first = int(first[2:], 16)
                last = int(last.removeprefix("U+"), 16) if last else first
                if not 0 < first <= last <= 0x10FFFF:
                    raise ValueError
            except ValueError:
                raise SystemExit(f"--characters {part}: a range looks like U+00C0-U+024F") from None
            characters.extend(chr(code) for code in range(first, last + 1) if not 0xD800 <= code < 0xE000)
        else:
            characters.extend(part)
    return list(dict.fromkeys(characters))


def distinct(characters, faces, most=None):
    """Returns the characters that have a name and, in every face, a picture that differs from those of all earlier characters
    (a Greek capital alpha looks like an A). At most `most` are returned."""
    chosen, seen = [], {face: {_picture_key(_ABSENT, face)} for face in faces}
    for character in characters:
        if not unicodedata.name(character, "") or unicodedata.category(character)[0] in "CZM":
            continue
        keys = {face: _picture_key(character, face) for face in faces}
        # The box drawn for a missing character differs between faces, but not within one.
        if any(key in seen[face] for face, key in keys.items()):
            continue
        for face, key in keys.items():
            seen[face].add(key)
        chosen.append(character)
        if len(chosen) == most:
            break
    return chosen


def _picture_key(character, face):
    picture = render(character, face, (48, 48), (0, 0))
    return b"" if (picture == _PAPER).all() else picture.tobytes()
