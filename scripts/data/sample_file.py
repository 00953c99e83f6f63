"""Writes sample files (docs/file_formats.md)."""

import ctypes
import os
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

FORMAT = "maestro-samples"
VERSION = 2
LARGEST_PICTURE = 4096
COUNTS_FOR_EXACT_MATCH = 1
_BLOCK = 1 << 24


class SampleError(ValueError):
    """A sample or a sample file breaks a rule of the format."""


@dataclass
class Sample:
    """A sample. weights[i] and flags[i] apply to token i as a target; pictures are uint8 [height, width, channels]."""

    tokens: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    flags: list = field(default_factory=list)
    pictures: list = field(default_factory=list)

    def add(self, tokens, weight=1.0, flag=0):
        self.tokens.extend(tokens)
        self.weights.extend([weight] * len(tokens))
        self.flags.extend([flag] * len(tokens))

    def add_picture(self, marker, picture):
        self.add([marker], weight=0.0)
        self.pictures.append(picture)


class Xxh64:
    """XXH64 with seed 0, from the C library (Debian's libxxhash0)."""

    _library = None

    @classmethod
    def of(cls, *parts):
        if cls._library is None:
            try:
                cls._library = ctypes.CDLL("libxxhash.so.0")
            except OSError as error:
                raise SystemExit(f"libxxhash.so.0 is missing ({error}); apt-get install libxxhash0") from error
            cls._library.XXH64.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]
            cls._library.XXH64.restype = ctypes.c_uint64
        data = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        return cls._library.XXH64(data, len(data), 0)


def without_times(kind):
    """Returns creation properties without times, so that equal contents give equal bytes."""
    properties = h5py.h5p.create(kind)
    properties.set_obj_track_times(False)
    return properties


def new_file(path):
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, without_times(h5py.h5p.FILE_CREATE), access))


def weight_of(weights):
    """Returns the sum that the index stores, added in the order of the tokens (numpy.sum adds pairwise)."""
    return float(np.cumsum(weights, dtype="<f8")[-1])


def check_sample(tokens, weights, flags, pictures, *, vocabulary, marker, channels):
    """Raises SampleError if the arrays break a rule of the format."""
    if not 0 < len(tokens) == len(weights) == len(flags):
        raise SampleError(f"{len(tokens)} tokens, {len(weights)} weights and {len(flags)} flags: must be equal and > 0")
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise SampleError(f"token ids {tokens.min()}..{tokens.max()} are outside the vocabulary of {vocabulary}")
    if not np.isfinite(weights).all() or weights.min() < 0:
        raise SampleError("loss weights must be finite and >= 0")
    silent = tokens == marker
    silent[0] = True
    if weights[silent].any() or (flags[silent] & COUNTS_FOR_EXACT_MATCH).any():
        raise SampleError("the first token and markers have loss weight 0 and no flag: nothing predicts them")
    markers = int((tokens == marker).sum())
    if markers != len(pictures):
        raise SampleError(f"{markers} markers and {len(pictures)} pictures")
    for picture in pictures:
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != channels:
            raise SampleError(f"a picture is {picture.dtype} {picture.shape}, not uint8 [h, w, {channels}]")
        if not all(1 <= side <= LARGEST_PICTURE for side in picture.shape[:2]):
            raise SampleError(f"a picture of {picture.shape[:2]}; sides are 1 to {LARGEST_PICTURE} pixels")


class SampleWriter:
    """Collects samples. close() writes them under a temporary name, reads them back, compares and renames.

    Pixels are kept in an unnamed file next to the target, so only tokens are in memory. Without close() nothing remains.
    """

    def __init__(self, path, *, vocabulary, marker, channels=1, tokenizer="bytes", tokenizer_json=b""):
        self.path = Path(path)
        self.vocabulary, self.marker, self.channels = vocabulary, marker, channels
        self.tokenizer, self.tokenizer_json = tokenizer, tokenizer_json
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._spool = tempfile.TemporaryFile(dir=self.path.parent)
        self._tokens, self._weights, self._flags = array("i"), array("f"), array("B")
        self._sample_offsets, self._picture_offsets, self._pixel_offsets = array("q", [0]), array("q", [0]), array("q", [0])
        self._shapes = array("i")
        self._checksums, self._pixel_checksums, self._sums = array("Q"), array("Q"), array("d")
        self._whole_checksums = array("Q")  # of all arrays of a sample; for the identity

    def __len__(self):
        return len(self._checksums)

    def add(self, sample):
        tokens = np.asarray(sample.tokens, dtype="<i8")
        weights = np.asarray(sample.weights, dtype="<f4")
        flags = np.asarray(sample.flags, dtype="u1")
        check_sample(tokens, weights, flags, sample.pictures, vocabulary=self.vocabulary, marker=self.marker, channels=self.channels)
        tokens = tokens.astype("<i4")
        pictures = [np.ascontiguousarray(picture) for picture in sample.pictures]
        self._checksums.append(Xxh64.of(tokens, weights, flags))
        self._whole_checksums.append(Xxh64.of(tokens, weights, flags, *pictures))
        self._sums.append(weight_of(weights))
        self._tokens.frombytes(tokens.tobytes())
        self._weights.frombytes(weights.tobytes())
        self._flags.frombytes(flags.tobytes())
        self._sample_offsets.append(len(self._tokens))
        for picture in pictures:
            self._shapes.extend(picture.shape[:2])
            self._pixel_checksums.append(Xxh64.of(picture))
            self._pixel_offsets.append(self._pixel_offsets[-1] + picture.nbytes)
            self._spool.write(picture.tobytes())
        self._picture_offsets.append(len(self._pixel_offsets) - 1)

    def close(self):
        if len(self) == 0:
            raise SampleError("no samples")
        arrays = self._arrays()
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        try:
            self._reserve(arrays)
            with new_file(partial) as file:
                self._write(file, arrays)
            with h5py.File(partial, "r") as file:
                self._verify(file, arrays)
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, self.path)
            directory = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
        finally:
            partial.unlink(missing_ok=True)
            self._spool.close()

    def _arrays(self):
        def view(values, dtype):
            return np.frombuffer(values, dtype=dtype) if len(values) else np.zeros(0, dtype)

        return {
            "tokens": view(self._tokens, "<i4"),
            "loss_weight": view(self._weights, "<f4"),
            "flags": view(self._flags, "u1"),
            "index/sample_offsets": view(self._sample_offsets, "<i8"),
            "index/picture_offsets": view(self._picture_offsets, "<i8"),
            "index/picture_shape": view(self._shapes, "<i4").reshape(-1, 2),
            "index/pixel_offsets": view(self._pixel_offsets, "<i8"),
            "index/checksum": view(self._checksums, "<u8"),
            "index/loss_weight": view(self._sums, "<f8"),
            "index/pixel_checksum": view(self._pixel_checksums, "<u8"),
        }

    def _reserve(self, arrays):
        """Raises OSError if the disk is too full; closing an HDF5 file would hide that."""
        needed = sum(values.nbytes for values in arrays.values()) + self._pixel_offsets[-1] + (1 << 16)
        space = os.statvfs(self.path.parent)
        if space.f_bavail * space.f_frsize < needed:
            raise OSError(f"{self.path}: needs {needed} bytes, and the disk has {space.f_bavail * space.f_frsize}")

    def _write(self, file, arrays):
        h5py.h5g.create(file.id, b"index", gcpl=without_times(h5py.h5p.GROUP_CREATE))
        for name, values in arrays.items():
            file.create_dataset(name, data=values)
        pixels = file.create_dataset("pixels", shape=(self._pixel_offsets[-1],), dtype="u1")
        for begin, block in self._spooled():
            pixels[begin : begin + len(block)] = block
        if self.tokenizer_json:
            file.create_dataset("tokenizer_json", data=np.frombuffer(self.tokenizer_json, dtype="u1"))
        file.attrs["format"] = np.bytes_(FORMAT)
        file.attrs["version"] = np.int64(VERSION)
        file.attrs["vocabulary"] = np.int64(self.vocabulary)
        file.attrs["marker"] = np.int64(self.marker)
        file.attrs["channels"] = np.int64(self.channels)
        file.attrs["tokenizer"] = np.bytes_(self.tokenizer)
        header = (self.vocabulary, self.marker, self.channels)
        identity = identity_of(header, arrays, np.frombuffer(self._whole_checksums, "<u8"))
        file.attrs["identity"] = np.uint64(identity)
        file.attrs["index_checksum"] = np.uint64(index_checksum(header, identity, arrays))

    def _spooled(self):
        self._spool.seek(0)
        begin = 0
        while data := self._spool.read(_BLOCK):
            yield begin, np.frombuffer(data, dtype="u1")
            begin += len(data)

    def _verify(self, file, arrays):
        good = all(np.array_equal(file[name][...], values) for name, values in arrays.items())
        good = good and all(
            np.array_equal(file["pixels"][begin : begin + len(block)], block) for begin, block in self._spooled()
        )
        if not good:
            raise OSError(f"{self.path}: what was written reads back differently; is the disk full?")


def _index_parts(arrays, *names):
    return (arrays[f"index/{name}"] for name in ("sample_offsets", "picture_offsets", "picture_shape", "pixel_offsets", *names))


def identity_of(header, arrays, whole_checksums):
    """Returns the hash of the contents by which checkpoints recognise the samples."""
    return Xxh64.of(np.array(header, dtype="<i8"), *_index_parts(arrays), whole_checksums)


def index_checksum(header, identity, arrays):
    parts = _index_parts(arrays, "checksum", "loss_weight", "pixel_checksum")
    return Xxh64.of(np.array(header, dtype="<i8"), np.array([identity], dtype="<u8"), *parts)
