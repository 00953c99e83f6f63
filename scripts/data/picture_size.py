"""Reads pictures, and scales them as the image processor of Qwen2-VL, Qwen3-VL and Qwen3.5 does, so that no patch needs padding."""

import io
import math
from dataclasses import dataclass

import numpy as np
from PIL import Image
from sample_file import LARGEST_PICTURE, SampleError

PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
ORIENTATION = 0x0112  # of EXIF
UPRIGHT = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
           6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90}  # fmt: skip
LONGEST_SHAPE = 200  # the image processor refuses pictures that are longer, in units of their shorter side


class PictureError(SampleError):
    """A picture is missing or cannot be used. Its file may change while the line that names it stays the same."""


def shortened(text, most=200):
    """Returns the text without its middle if it is long, as where pixels stand in place of a path."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-(most // 2) :]}"


def read_picture(source, name, mode):
    """Returns a picture of a path or of the bytes of a file, upright as its EXIF says, in a mode of PIL. Raises PictureError that begins with
    `name`."""
    name = shortened(str(name))
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            image.load()
            if image.mode.startswith(("I", "F")):  # PIL would cut off what exceeds 255
                raise PictureError(f"{name}: has 16-bit or float pixels; convert it to 8 bits")
            turn = UPRIGHT.get(_orientation(image))
            return (image if turn is None else image.transpose(turn)).convert(mode)
    except FileNotFoundError:
        raise PictureError(f"{name}: no such picture") from None
    except PictureError:
        raise
    except Exception as error:  # decoders raise many types if a picture is damaged
        raise PictureError(f"{name}: not a picture, or damaged ({shortened(str(error)) or type(error).__name__})") from None


def _orientation(image):
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # odd or damaged EXIF; the pixels do not depend on it
        return 1


@dataclass
class PictureSize:
    """Sides are multiples of patch x merge, and height x width is from `least` to `most` pixels."""

    patch: int
    merge: int
    least: int
    most: int

    @staticmethod
    def of_config(config, least=None, most=None):
        """Reads an image processor's configuration; `least` and `most` replace its limits. Raises ValueError if it is not supported."""
        kind = config.get("image_processor_type")
        if kind is not None and kind not in PROCESSORS:
            raise ValueError(f"image_processor_type {kind!r} is not supported; {PROCESSORS[0]} is")
        for name, expected in (("do_resize", True), ("do_rescale", True), ("do_normalize", True), ("resample", Image.Resampling.BICUBIC)):
            if config.get(name, expected) != expected:
                raise ValueError(f"{name} {config[name]!r} is not supported; it must be {int(expected) if name == 'resample' else expected}")
        for name in ("image_mean", "image_std"):
            if config.get(name) != [0.5] * 3:
                raise ValueError(f"{name} {config.get(name)!r} is not supported; the program scales pixels to -1..1, which is [0.5, 0.5, 0.5]")
        size = config.get("size") or {}
        if not isinstance(size, dict):
            raise ValueError(f'size {size!r} is not supported; it must be {{"shortest_edge": PIXELS, "longest_edge": PIXELS}}')
        least = least or config.get("min_pixels") or size.get("shortest_edge") or 56 * 56
        most = most or config.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280
        found = PictureSize(config.get("patch_size", 14), config.get("merge_size", 2), least, most)
        if not all(isinstance(n, int) and n > 0 for n in vars(found).values()) or least > most:
            raise ValueError(f"patch_size {found.patch}, merge_size {found.merge}, {least} to {most} pixels: must be positive and in this order")
        return found

    def resized(self, height, width):
        """Returns height and width after scaling. Halves round to even, as in `smart_resize` of transformers."""
        if max(height, width) > LONGEST_SHAPE * min(height, width):
            raise SampleError(f"{width} x {height} pixels: one side is more than {LONGEST_SHAPE} times the other")
        factor = self.patch * self.merge
        h, w = round(height / factor) * factor, round(width / factor) * factor
        if h * w > self.most:
            scale = math.sqrt(height * width / self.most)
            h, w = (max(factor, math.floor(side / scale / factor) * factor) for side in (height, width))
        elif h * w < self.least:
            scale = math.sqrt(self.least / (height * width))
            h, w = (math.ceil(side * scale / factor) * factor for side in (height, width))
        if max(h, w) > LARGEST_PICTURE:
            raise SampleError(f"{w} x {h} pixels after scaling; at most {LARGEST_PICTURE} are allowed; --max-pixels scales further down")
        return h, w

    def tokens_of(self, height, width):
        """Returns how many tokens a scaled picture has in the model."""
        return height * width // (self.patch * self.merge) ** 2

    def load(self, source, name):
        """Returns pixels, uint8 [height, width, 3], of a path or of the bytes of a picture file. Raises PictureError that begins with `name`."""
        image = read_picture(source, name, "RGB")
        try:
            h, w = self.resized(image.height, image.width)
        except SampleError as error:
            raise PictureError(f"{name}: {error}") from None
        return np.asarray(image.resize((w, h), Image.Resampling.BICUBIC), dtype=np.uint8)
