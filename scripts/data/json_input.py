"""Reads the objects of JSONL files and of JSON arrays, compressed or not, in chunks that processes can read by themselves."""

import gzip
import json
import mmap
import os
import re
import shutil
import subprocess
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path

from sample_file import SampleError

CHUNK_ROWS, CHUNK_BYTES = 256, 1 << 20
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
BOM = b"\xef\xbb\xbf"  # which some programs write before UTF-8
SPACE = b" \t\r\n"
# Strings, and outside of them what an array consists of. A quotation mark alone begins a string that does not end.
_PIECE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]', re.DOTALL)


class InputError(ValueError):
    """A file cannot be read. `code` is the exit code."""

    def __init__(self, message, code=65):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Chunk:
    """Rows `first` to `first` + `count` - 1 of a file: lines, which count from 1, or elements of an array, which count from 0. They are
    bytes `begin` to `end` of `text`, or rows of a row group of Parquet."""

    path: Path
    first: int
    count: int
    begin: int
    end: int
    text: Path = None
    is_array: bool = False
    group: int = -1  # of Parquet

    def name_of(self, number):
        """How errors name a row."""
        return f"{self.path}[{number}]" if self.is_array else f"{self.path}:{number}"


def chunks_of(path, copy):
    """Returns the chunks of a file. `copy` is the path of a file to make, which must stay, if the text is not that of a regular file."""
    text = _text_of(path, copy)
    spans = _elements_of_file(path, text)
    return _chunks_of_lines(path, text) if spans is None else _chunks_of_elements(path, text, spans)


def bytes_of(chunk):
    with open(chunk.text, "rb") as file:
        file.seek(chunk.begin)
        return file.read(chunk.end - chunk.begin)


def rows_of(chunk):
    """Yields (number, row) for every row that is not empty; a row that cannot be read is a SampleError."""
    data = bytes_of(chunk)
    if chunk.is_array:
        data = b"[" + data + b"]"
        rows = [data[begin:end] for begin, end in _elements_of(data) if begin is not None] or [b""]  # behind a comma that nothing follows
    else:
        rows = data.split(b"\n")
    for number, row in enumerate(rows, start=chunk.first):
        if chunk.is_array or row.strip():
            try:
                yield number, json.loads(row.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                hint = "" if chunk.is_array else "; needs one object per line, or a JSON array"
                yield number, SampleError(f"not JSON in UTF-8: {error}{hint}")


def _text_of(path, copy):
    """Returns the path of a file's text: its own, or `copy`."""
    source, unpacked = path, copy.with_name(f"{copy.name}.unpacked")
    try:
        with open(path, "rb") as file:
            if not path.is_file():  # a pipe is read once
                with open(copy, "wb") as out:
                    shutil.copyfileobj(file, out, 1 << 20)
                source = copy
        with open(source, "rb") as file:
            start = file.read(4)
        if start.startswith(GZIP):
            with gzip.open(source) as file, open(unpacked, "wb") as out:
                shutil.copyfileobj(file, out, 1 << 20)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"{path}: {error.strerror}", 66) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not gzip, or damaged ({error})") from None
    if start == ZSTD:
        _unpack_zstd(path, source, unpacked)
    elif not start.startswith(GZIP):
        return source
    os.replace(unpacked, copy)
    return copy


def _unpack_zstd(path, source, unpacked):
    if not (program := shutil.which("zstd")):
        raise InputError(f"{path}: needs the program zstd (apt-get install zstd); or decompress the file first", 69)
    with open(unpacked, "wb") as out:
        made = subprocess.run([program, "-dcq", "--long=31", "--", source], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
    if made.returncode != 0:
        raise InputError(f"{path}: not zstd, or damaged ({made.stderr.decode('utf-8', 'replace').strip()})")


def _chunks_of_lines(path, text):
    chunks, first, count, at = [], 1, 0, 0
    with open(text, "rb") as lines:
        begin = len(BOM) if lines.read(len(BOM)) == BOM else 0
        lines.seek(0)
        for line in lines:
            at += len(line)
            count += 1
            if count == CHUNK_ROWS or at - begin >= CHUNK_BYTES:
                chunks.append(Chunk(path, first, count, begin, at, text))
                first, count, begin = first + count, 0, at
    return chunks + ([Chunk(path, first, count, begin, at, text)] if count else [])


def _chunks_of_elements(path, text, spans):
    chunks, first, count = [], 0, len(spans) // 2
    for i in range(count):
        begin, end = spans[2 * first], spans[2 * i + 1]
        if i + 1 - first == CHUNK_ROWS or end - begin >= CHUNK_BYTES or i + 1 == count:
            chunks.append(Chunk(path, first, i + 1 - first, begin, end, text, True))
            first = i + 1
    return chunks


def _elements_of_file(path, text):
    """Returns where the elements of a file that is an array begin and end, as begin, end, begin, ...; None if it is JSONL."""
    with open(text, "rb") as file:
        if not file.read(4096).removeprefix(BOM).lstrip(SPACE).startswith(b"["):
            return None
        spans = array("q")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for begin, end in _elements_of(data):
                if begin is None:
                    return spans if not data[end:].strip(SPACE) else None
                spans.extend((begin, end))
    raise InputError(f"{path}: begins with [ as a JSON array, which does not end with ]; is the file cut off?")


def _elements_of(data):
    """Yields where each element of an array begins and ends, and at its end (None, end of the array). Brackets are counted alone, as
    elements are read later."""
    depth = count = begin = 0
    for piece in _PIECE.finditer(data):
        start, stop = piece.span()
        kind = data[start : start + 1]
        if kind == b'"' and stop == start + 1 or kind == b"}" and depth == 1:
            return
        if kind in b"[{":
            depth += 1
            if depth == 1:
                begin = stop
        elif kind in b"]}":
            depth -= 1
        if kind in b"]}," and depth == (kind == b","):
            if kind == b"," or count or data[begin:start].strip(SPACE):
                yield begin, start
            count, begin = count + 1, stop
            if kind != b",":
                yield None, stop
                return
