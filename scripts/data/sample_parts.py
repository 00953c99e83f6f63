"""Parts of a sample file: what became of one chunk of the input. They let a tool work in parallel and continue after an interruption.

A part consists of NUMBER.npz and, if it has pictures, NUMBER.pixels. The former is written last and under a temporary name, so a part
with an .npz is complete."""

import os
from array import array

import numpy as np
from picture_size import shortened
from sample_file import Sample

LONGEST_MESSAGE = 1000  # characters; numpy gives every message of a part the room of its longest


class PartWriter:
    """Collects samples and errors, pixels on disk. close() publishes the part."""

    def __init__(self, folder, number):
        self._npz, self._pixels = _paths(folder, number)
        self._npz.unlink(missing_ok=True)
        self._file, self._bytes = None, 0
        self._tokens, self._answers = array("i"), array("B")
        self._lengths, self._lines, self._whole = array("q"), array("q"), array("q")
        self._hashes, self._pictures, self._shapes = array("Q"), array("q"), array("i")
        self._ends, self._end_counts = array("i"), array("i")
        self._errors, self._retry = [], False

    def add(self, line, ids, answers, pictures, whole_length, content_hash, ends):
        self._tokens.extend(ids)
        self._answers.extend(answers)
        self._lengths.append(len(ids))
        self._lines.append(line)
        self._whole.append(whole_length)
        self._hashes.append(content_hash)
        self._pictures.append(len(pictures))
        self._ends.extend(ends)
        self._end_counts.append(len(ends))
        for picture in pictures:
            self._shapes.extend(picture.shape[:2])
            self._file = self._file or open(self._pixels, "wb")
            self._bytes += self._file.write(picture.tobytes())

    def add_error(self, line, message, retry=False):
        """`retry`: the error may be gone although the line is the same, so that the part is to be made again."""
        self._errors.append((line, shortened(message, LONGEST_MESSAGE)))
        self._retry = self._retry or retry

    def close(self, key):
        if self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        arrays = {"tokens": np.array(self._tokens, "<i4"), "answers": np.array(self._answers, "u1"), "lengths": np.array(self._lengths, "<i8"),
                  "lines": np.array(self._lines, "<i8"), "whole_lengths": np.array(self._whole, "<i8"), "hashes": np.array(self._hashes, "<u8"),
                  "pictures": np.array(self._pictures, "<i8"), "shapes": np.array(self._shapes, "<i4").reshape(-1, 2),
                  "ends": np.array(self._ends, "<i4"), "end_counts": np.array(self._end_counts, "<i4"),
                  "error_lines": np.array([line for line, _ in self._errors], "<i8"),
                  "error_messages": np.array([message.encode("utf-8", "replace") for _, message in self._errors] or [b""]),
                  "bytes": np.array([self._bytes], "<i8"), "retry": np.array([self._retry]),
                  "key": np.array([key], "<u8")}  # fmt: skip
        partial = self._npz.with_suffix(".partial")
        with open(partial, "wb") as file:
            np.savez(file, **arrays)
        os.replace(partial, self._npz)


def _paths(folder, number):
    return folder / f"{number:06d}.npz", folder / f"{number:06d}.pixels"


def has_key(folder, number, key):
    """Whether the part is complete, of this key and not to be made again."""
    npz, pixels = _paths(folder, number)
    try:
        with np.load(npz) as part:
            same = int(part["key"][0]) == key and not part["retry"][0]
            return same and (len(part["shapes"]) == 0 or pixels.stat().st_size == int(part["bytes"][0]))
    except Exception:  # zipfile and numpy raise many types if a file is missing or damaged
        return False


class Part:
    """A complete part: `lines`, `whole_lengths` (with the tokens that pictures have in the model), `hashes` (of the contents), `pictures`
    (their number) and `ends` (the tokens that end the answers) by sample, and `errors`, (line, message)."""

    def __init__(self, folder, number):
        self._npz, self._pixels = _paths(folder, number)
        with np.load(self._npz) as part:
            self.lines, self.whole_lengths, self.hashes, self.pictures = (part[n] for n in ("lines", "whole_lengths", "hashes", "pictures"))
            self.ends = np.split(part["ends"], np.cumsum(part["end_counts"])[:-1])
            self.errors = [(int(line), message.decode("utf-8")) for line, message in zip(part["error_lines"], part["error_messages"])]

    def samples(self, channels):
        """Yields the samples; tokens that are learned have weight 1 and count for the exact-match rate."""
        with np.load(self._npz) as part:
            tokens, answers, shapes = part["tokens"], part["answers"], part["shapes"]
            offsets = np.concatenate([[0], np.cumsum(part["lengths"])])
        pixels = np.memmap(self._pixels, np.uint8, "r") if len(shapes) else None
        at = shown = 0
        for i, pictures in enumerate(self.pictures):
            span = slice(offsets[i], offsets[i + 1])
            sample = Sample(tokens[span], answers[span].astype("<f4"), answers[span])
            for height, width in shapes[shown : shown + pictures]:
                size = int(height) * int(width) * channels
                sample.pictures.append(pixels[at : at + size].reshape(height, width, channels))
                at += size
            shown += pictures
            yield sample
