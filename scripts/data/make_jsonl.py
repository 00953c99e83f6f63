#!/usr/bin/env python3
"""Makes a sample file from JSONL, one object per line, or a JSON array of such objects, and pictures (PNG, JPEG). The input may be
compressed by gzip or zstd.

  {"text": "a <image> beside a <image>", "images": ["a.png", "b.jpg"], "answer": "a cat and a dog"}
  {"content": [{"text": "look:"}, {"image": "a.png"}, {"answer": "a cat"}]}

Paths of pictures are relative to the JSONL file. "answer" is optional; its tokens count for the exact-match rate."""

import argparse
import re
import sys
import tempfile
from pathlib import Path

import apt_packages  # noqa: F401
import byte_tokens
import numpy as np
from json_input import InputError, chunks_of, rows_of
from picture_size import read_picture
from sample_file import COUNTS_FOR_EXACT_MATCH, LARGEST_PICTURE, Sample, SampleError, SampleWriter

PLACE = "<image>"


class Refusal(SystemExit):
    """Ends the program with an exit code after it said why."""

    def __init__(self, message, code=65):
        super().__init__(message)
        self.code = code
        print(message, file=sys.stderr)


class ByteTokens:
    name, json = "bytes", b""
    marker, begin, end = byte_tokens.MARKER, byte_tokens.BEGIN, byte_tokens.END
    vocabulary = byte_tokens.VOCABULARY
    encode = staticmethod(byte_tokens.encode)


class HuggingFaceTokens:
    """The tokenizer of a tokenizer.json; marker, begin and end get the ids after its vocabulary."""

    name = "huggingface"

    def __init__(self, path):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise Refusal("--tokenizer needs the Python package tokenizers: /usr/bin/python3 -m pip install --target build/python tokenizers, and "
                          "then PYTHONPATH=build/python", 69) from None  # fmt: skip
        try:
            self.json = Path(path).read_bytes()
            self._tokenizer = Tokenizer.from_str(self.json.decode("utf-8"))
        except Exception as error:  # tokenizers raises plain Exception
            raise Refusal(f"--tokenizer {path}: {error}; use a Hugging Face tokenizer.json") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.marker, self.begin, self.end, self.vocabulary = size, size + 1, size + 2, size + 3

    def encode(self, text):
        if found := [token for token in self._special if token in text]:
            raise SampleError(f"the text contains the special token {max(found, key=len)!r}, which the tokenizer would not read as text; remove it")
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def parts_of(record):
    """Returns a record as [("text" | "image" | "answer", string)]; raises SampleError if it is malformed."""
    if isinstance(record, SampleError):
        raise record
    if not isinstance(record, dict):
        raise SampleError("not a JSON object")
    unknown = set(record) - {"text", "images", "content", "answer"}
    if unknown:
        raise SampleError(f"unknown key {sorted(unknown)[0]!r}; allowed are text, images, content, answer")
    if ("text" in record) == ("content" in record):
        raise SampleError('needs either "text" (with "images") or "content"')
    if "content" in record:
        parts = _content(record)
    else:
        parts = _interleave(record["text"], record.get("images", []))
    if "answer" in record:
        parts.append(("answer", record["answer"]))
    for kind, value in parts:
        if not isinstance(value, str):
            raise SampleError(f'"{kind}" must be a string')
        if found := re.search("[\ud800-\udfff]", value):
            raise SampleError(f'"{kind}" contains {found[0]!a}, which is half of a character')
    return parts


def _content(record):
    if "images" in record:
        raise SampleError('"images" belongs to "text"; in "content" write {"image": "a.png"}')
    if not isinstance(record["content"], list):
        raise SampleError('"content" must be a list')
    parts = []
    for item in record["content"]:
        if not isinstance(item, dict) or len(item) != 1 or next(iter(item)) not in ("text", "image", "answer"):
            raise SampleError('"content" holds objects {"text": ...}, {"image": ...} or {"answer": ...}')
        parts.extend(item.items())
    return parts


def _interleave(text, images):
    if not isinstance(text, str) or not isinstance(images, list):
        raise SampleError('"text" must be a string and "images" a list of paths')
    texts = text.split(PLACE)
    if len(texts) != len(images) + 1:
        raise SampleError(f"{len(texts) - 1} times {PLACE} in the text and {len(images)} images")
    parts = [("text", texts[0])]
    for image, after in zip(images, texts[1:]):
        parts += [("image", image), ("text", after)]
    return parts


def load_picture(path, channels, largest):
    image = read_picture(path, path, {1: "L", 3: "RGB"}[channels])
    if largest:
        image.thumbnail((largest, largest))
    elif max(image.size) > LARGEST_PICTURE:
        raise SampleError(f"{path}: {image.size[0]} x {image.size[1]} pixels; at most {LARGEST_PICTURE} are allowed; --largest shrinks pictures")
    return np.asarray(image, dtype=np.uint8).reshape(image.height, image.width, channels)


def to_sample(record, folder, tokens, options):
    sample = Sample()
    sample.add([tokens.begin], weight=0.0)
    weight = options.text_weight  # of what the end follows
    for kind, value in parts_of(record):
        if kind == "answer" or value:
            weight = options.answer_weight if kind == "answer" else options.text_weight
        if kind == "image":
            sample.add_picture(tokens.marker, load_picture(folder / value, options.channels, options.largest))
        elif kind == "answer":
            sample.add(tokens.encode(value), weight=options.answer_weight, flag=COUNTS_FOR_EXACT_MATCH)
        else:
            sample.add(tokens.encode(value), weight=options.text_weight)
    sample.add([tokens.end], weight=1.0 if weight else 0.0)  # what is only context teaches no end behind it
    if options.longest and len(sample.tokens) > options.longest:
        raise SampleError(f"{len(sample.tokens)} tokens; --longest allows {options.longest}")
    return sample


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, help="JSONL file, or a JSON array; also compressed (gzip, zstd)")
    parser.add_argument("output", type=Path, help="sample file to write, .h5")
    parser.add_argument("--tokenizer", default="bytes", help='"bytes", or the path of a Hugging Face tokenizer.json')
    parser.add_argument("--channels", type=int, choices=(1, 3), default=3, help="1: grey, 3: colour")
    parser.add_argument("--largest", type=int, metavar="N", help="shrink pictures whose longer side has more than N pixels")
    parser.add_argument("--longest", type=int, metavar="N", help="refuse samples of more than N tokens (a picture counts as one)")
    parser.add_argument("--text-weight", type=float, default=1.0, help="loss weight of text tokens")
    parser.add_argument("--answer-weight", type=float, default=1.0, help="loss weight of answer tokens")
    options = parser.parse_args(arguments)
    if options.largest is not None and not 1 <= options.largest <= LARGEST_PICTURE:
        parser.error(f"--largest must be from 1 to {LARGEST_PICTURE}")
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    tokens = ByteTokens() if options.tokenizer == "bytes" else HuggingFaceTokens(options.tokenizer)
    try:
        make(options, tokens)
    except InputError as error:
        raise Refusal(str(error), error.code) from None
    except OSError as error:
        raise Refusal(f"{options.output}: {error}", 74) from None


def make(options, tokens):
    writer = SampleWriter(options.output, vocabulary=tokens.vocabulary, marker=tokens.marker, channels=options.channels,
                          tokenizer=tokens.name, tokenizer_json=tokens.json)  # fmt: skip
    errors, learned = [], False
    with tempfile.TemporaryDirectory(dir=options.output.parent, prefix=f".{options.output.name}.") as folder:
        for chunk in chunks_of(options.input, Path(folder) / "text"):
            for number, row in rows_of(chunk):
                try:
                    sample = to_sample(row, options.input.parent, tokens, options)
                    writer.add(sample)
                    learned = learned or any(sample.weights)
                except (SampleError, RecursionError) as error:
                    errors.append(f"{chunk.name_of(number)}: {error}")
    if not errors and len(writer) == 0:
        errors.append(f"{options.input}: no samples")
    if errors:
        print("\n".join(errors[:20]), file=sys.stderr)
        raise Refusal(f"{len(errors)} bad lines; {options.output} was not written")
    if not learned:
        raise Refusal(f"{options.input}: nothing to learn, as all loss weights are 0; {options.output} was not written")
    writer.close()
    print(f"{options.output}: {len(writer)} samples")


if __name__ == "__main__":
    main()
