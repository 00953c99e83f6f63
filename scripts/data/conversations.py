#!/usr/bin/env python3
"""Makes a sample file from conversations, with the tokenizer, the chat template and the picture sizes of a Hugging Face model folder.
Only what the assistant writes is learned: the text of its messages and the token that ends them.

  scripts/data/conversations.py models/Qwen3-VL-2B-Instruct --input chats.jsonl --output data/chats.h5

A line of JSONL, an element of a JSON array (both also compressed by gzip or zstd), or a row of Parquet (.parquet) with these columns:

  {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello! How can I help?"}]}
  {"messages": [{"role": "user", "content": [{"type": "image", "image": "cat.png"}, {"type": "text", "text": "What is it?"}]},
                {"role": "assistant", "content": "A cat."}]}

Roles are those that the chat template knows, usually system, user, assistant and tool. A message of the assistant with "weight": 0 or
"train": false is not learned. A picture is a path relative to the input file, or bytes in Parquet; {"type": "image"} without a path takes
the next of a list "images" beside "messages", and so does <image> in texts (LLaVA, ShareGPT). "tools" is a list
for the template. Other columns are ignored.

An interrupted run continues when the same command is given again. Until the end, OUTPUT.parts holds what is done."""

import argparse
import datetime
import fcntl
import functools
import glob
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import apt_packages  # noqa: F401
import numpy as np
from conversation_rows import MARK, chunks_of, conversation_of, key_of, rows_of
from conversation_tokens import NO_END, tokens_and_ends_of
from json_input import InputError
from model_folder import FolderError, read_chat
from picture_size import PictureError
from sample_file import SampleError, SampleWriter, Xxh64, check_sample
from sample_parts import Part, PartWriter, has_key

CHANNELS = 3
PARTS_VERSION = 4  # raise it when the same input gives other samples
MOST_ERRORS = 1000
USAGE, BAD_DATA, FAILED, STOPPED = 64, 65, 74, 75


class Refused(Exception):
    """The input cannot be used; `code` is the exit code."""

    def __init__(self, message, code=BAD_DATA):
        super().__init__(message)
        self.code = code


def sample_of(row, folder, chat):
    """Returns ids, answers (uint8: 1 at tokens that are learned), pictures and the ends of the answers of a row. Raises SampleError."""
    messages, sources, tools = conversation_of(row)
    if sources and chat.picture is None:
        raise SampleError("has pictures, and the model folder has no preprocessor_config.json and token for them: it is a model of text alone")
    ids, answers, ends = tokens_and_ends_of(messages, tools, chat)
    ids, answers = np.array(ids, "<i8"), np.array(answers, "u1")
    markers = int((ids == chat.marker).sum())
    if markers != len(sources):
        raise SampleError(f"{len(sources)} pictures, and the chat template writes {markers} markers (token {chat.marker})")
    answers[ids == chat.marker] = 0
    answers[:1] = 0  # nothing predicts the first token
    if not answers.any():
        raise SampleError("nothing to learn: no token of the assistant, or only one that nothing predicts")
    names = [source if isinstance(source, str) else f"picture {i + 1}" for i, source in enumerate(sources)]
    pictures = [chat.picture.load(source if isinstance(source, bytes) else folder / source, name) for source, name in zip(sources, names)]
    check_sample(ids, answers.astype("<f4"), answers, pictures, vocabulary=chat.vocabulary, marker=chat.marker, channels=CHANNELS)
    return ids, answers, pictures, ends


class Job:
    """What a process needs to make parts."""

    def __init__(self, chat, chunks, folder):
        self.chat, self.chunks, self.folder = chat, chunks, folder
        self._identity = Xxh64.of(np.array([chat.identity, PARTS_VERSION], "<u8"))

    def make(self, number):
        """Makes a part unless it is complete, without pictures that could not be used. Returns whether it was, and the number of its errors."""
        chunk = self.chunks[number]
        key = key_of(chunk, self._identity)
        if has_key(self.folder, number, key):
            return True, len(Part(self.folder, number).errors)
        part, errors = PartWriter(self.folder, number), 0
        for line, row in rows_of(chunk):
            try:
                ids, answers, pictures, ends = sample_of(row, chunk.path.parent, self.chat)
            except (SampleError, RecursionError) as error:
                message = str(error) if isinstance(error, SampleError) else "lists or objects are nested too deeply"
                part.add_error(line, message, retry=isinstance(error, PictureError))
                errors += 1
                continue
            grown = sum(self.chat.picture.tokens_of(*picture.shape[:2]) - 1 for picture in pictures)
            part.add(line, ids, answers, pictures, len(ids) + grown, Xxh64.of(ids, *pictures), ends)
        part.close(key)
        return False, errors


_job = None


def _start_process():
    # A signal to the whole group must reach the first process before the others are missing: it stops them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(2))
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with the first process


def _make(number):
    return _job.make(number)


@contextmanager
def _results(job, workers):
    """Yields an iterator over what Job.make returns, in order."""
    global _job
    if workers == 1 or len(job.chunks) < 2:
        yield map(job.make, range(len(job.chunks)))
        return
    _job = job  # the processes inherit it
    pool = ProcessPoolExecutor(min(workers, len(job.chunks)), multiprocessing.get_context("fork"), _start_process)
    try:
        yield pool.map(_make, range(len(job.chunks)))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _job = None


class Progress:
    """Lines on stderr, every second on a terminal and otherwise every ten."""

    def __init__(self, what, total):
        self._what, self._total, self._done, self._skipped = what, total, 0, 0
        self._begin = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def add(self, count, skipped=False):
        self._done += count
        self._skipped += count * skipped
        if time.monotonic() - self._shown >= (1 if self._terminal else 10):
            self._show("\r" if self._terminal else "\n")

    def end(self):
        self._show("\n")

    def _show(self, end):
        self._shown = time.monotonic()
        rate = (self._done - self._skipped) / max(self._shown - self._begin, 1e-3)
        left = f", {(self._total - self._done) / rate:.0f} s left" if rate > 0 and self._done < self._total else ""
        kept = f" ({self._skipped} of an earlier run)" if self._skipped else ""
        share = 100 * self._done / max(self._total, 1)
        print(f"{self._what}: {self._done} of {self._total} ({share:.0f}%){kept}, {rate:.0f}/s{left}   ", end=end, file=sys.stderr, flush=True)


def make_parts(job, workers, most_errors):
    """Makes all parts, or stops after many errors. Returns how many there are."""
    progress, errors = Progress("conversations", sum(chunk.count for chunk in job.chunks)), 0
    with _results(job, workers) as results:
        for number, (complete, bad) in enumerate(results):
            progress.add(job.chunks[number].count, complete)
            errors += bad
            if errors > most_errors:
                progress.end()
                return number + 1
    progress.end()
    return len(job.chunks)


def select(job, count, options):
    """Returns the parts, for each which samples are written (0: none, 1: training, 2: validation), and counts of what is dropped.
    Raises Refused if there are errors."""
    parts = [Part(job.folder, number) for number in range(count)]
    errors, long = [], 0
    for part, chunk in zip(parts, job.chunks):
        bad = list(part.errors) if not options.skip_errors else []
        if options.too_long == "refuse":
            bad += [(line, f"{length} tokens; --max-tokens allows {options.max_tokens}")
                    for line, length in zip(part.lines, part.whole_lengths) if length > options.max_tokens]  # fmt: skip
        errors += [f"{chunk.name_of(line)}: {message}" for line, message in sorted(bad)]
    if errors:
        print("\n".join(errors[:20]), file=sys.stderr)
        more = f" (and the rest of the input was not read after {MOST_ERRORS})" if count < len(job.chunks) else ""
        raise Refused(f"{len(errors)} bad lines{more}; {options.output} was not written; --skip-errors leaves such lines out")
    chosen = [(part.whole_lengths <= options.max_tokens).astype(int) for part in parts]
    long = sum(int((kept == 0).sum()) for kept in chosen)
    hashes = np.concatenate([part.hashes[kept == 1] for part, kept in zip(parts, chosen)] or [np.zeros(0, "<u8")])
    dropped = {"too long": long, "bad": sum(len(part.errors) for part in parts)}
    if len(hashes) == 0:
        bad = [f"{chunk.name_of(line)}: {message}" for part, chunk in zip(parts, job.chunks) for line, message in part.errors]
        print("\n".join(bad[:20]), end="\n" * bool(bad), file=sys.stderr)
        raise Refused(f"no conversations are left: {len(bad)} bad lines, and {long} conversations are too long; {options.output} was not written")
    if options.validation_output:
        # Equal conversations have equal hashes: none is in both files.
        threshold = np.sort(hashes)[max(1, round(options.validation_share * len(hashes))) - 1]
        if (hashes <= threshold).all():
            raise Refused("all conversations would be held out: there are too few that differ, or --validation-share is too large")
        for part, kept in zip(parts, chosen):
            kept[(kept == 1) & (part.hashes <= threshold)] = 2
    return parts, chosen, dropped


class Lengths:
    """Counts what a file gets, for the report."""

    def __init__(self, chat):
        self._tokens, self._pictures, self._learned, self._ends, self._marks = [], [], 0, Counter(), 0
        self._decode, special = chat.decode, frozenset(chat.special.values())
        self._may_begin_mark = functools.cache(lambda token: token not in special and MARK[0] in chat.decode([token]))

    def add(self, whole_length, sample, ends):
        self._tokens.append(int(whole_length))
        self._pictures.append(len(sample.pictures))
        self._learned += int(np.sum(sample.flags))
        self._ends.update(ends.tolist())
        if not sample.pictures:
            tokens = np.asarray(sample.tokens).tolist()
            self._marks += any(map(self._may_begin_mark, set(tokens))) and MARK in self._decode(tokens)

    def report(self, path, chat):
        total = sum(self._tokens)
        lines = [f"{path}: {len(self._tokens)} conversations, {total} tokens, {100 * self._learned / total:.1f}% of them with loss, "
                 f"{sum(self._pictures)} pictures"]  # fmt: skip
        for name, values in (("tokens", self._tokens), ("pictures", self._pictures)):
            if any(values):
                low, middle, high, most = (int(np.quantile(values, q, method="inverted_cdf")) for q in (0, 0.5, 0.9, 1))
                lines.append(f"  {name:8} of a conversation: min {low}, median {middle}, 90% at most {high}, max {most}")
        if self._marks:
            lines.append(f"  warning: {self._marks} texts contain {MARK} but bring no picture; is it missing, or under another name?")
        return "\n".join([*lines, *self._unknown_ends(chat)])

    def _unknown_ends(self, chat):
        """Yields a warning for each kind of end at which a program that loads the folder does not stop."""
        count = sum(self._ends.values())
        for token, times in sorted(self._ends.items()):
            if token == NO_END:
                yield (f"  warning: {times} of {count} answers have no special token at their end that is learned, so the model does not learn "
                       "to stop behind them; use a template that writes one (--chat-template)")  # fmt: skip
            elif chat.ends and token not in chat.ends:
                known = ", ".join(chat.decode([end]) or str(end) for end in sorted(chat.ends))
                yield (f"  warning: {times} of {count} answers end with {chat.decode([token])} (token {token}), and the folder's eos_token_id is "
                       f"that of {known}: programs that load the folder do not stop there unless generation_config.json names it")  # fmt: skip


def shown(sample, chat):
    """Returns a sample as text, with what is learned in brackets."""
    ids, learned = [int(token) for token in sample.tokens], np.asarray(sample.flags) > 0
    borders = [0, *(np.flatnonzero(np.diff(learned)) + 1), len(ids)]
    pieces = [chat.decode(ids[a:b]) for a, b in zip(borders, borders[1:])]
    return "".join(f"[[{piece}]]" if learned[a] else piece for piece, a in zip(pieces, borders))


def write(job, parts, chosen, options):
    """Writes the output files and returns the report."""
    chat = job.chat
    paths = {1: options.output, 2: options.validation_output}
    used = [which for which in (1, 2) if any((kept == which).any() for kept in chosen)]
    files = {which: SampleWriter(paths[which], vocabulary=chat.vocabulary, marker=chat.marker, channels=CHANNELS, tokenizer="huggingface",
                                 tokenizer_json=chat.tokenizer_json) for which in used}  # fmt: skip
    lengths = {which: Lengths(chat) for which in used}
    progress, left = Progress("written", sum(len(part.lines) for part in parts)), options.show
    for part, kept in zip(parts, chosen):
        for i, sample in enumerate(part.samples(CHANNELS)):
            if which := kept[i]:
                files[which].add(sample)
                lengths[which].add(part.whole_lengths[i], sample, part.ends[i])
                if which == 1 and left > 0:
                    print(shown(sample, chat), end="\n\n")
                    left -= 1
        progress.add(len(part.lines))
    for which in reversed(used):
        files[which].close()
    progress.end()
    return "\n".join(lengths[which].report(paths[which], chat) for which in used)


@contextmanager
def parts_folder(output):
    """The folder of the parts, locked; removed when the output is written."""
    folder = output.with_name(output.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"{folder}: another run is making {output}", FAILED) from None
        try:
            yield folder
        except BaseException:
            if not any(folder.glob("*.npz")):
                shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)


def date_of(folder, options):
    """Returns the date that a chat template may print: a run that continues keeps that of its beginning."""
    path = folder / "date.json"
    if options.date is None and path.exists():
        return datetime.datetime.fromisoformat(json.loads(path.read_text()))
    date = options.date or datetime.datetime.now().replace(microsecond=0)
    path.write_text(json.dumps(date.isoformat()))
    return date


def make(options, read=read_chat):
    """Makes the files that the options name; `read` returns the Chat of a folder."""
    with parts_folder(options.output) as folder:
        for path in filter(None, (options.output, options.validation_output)):
            for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):  # of a run that was killed while it wrote
                partial.unlink()
        chat = read(options.folder, template=options.chat_template, template_variables=dict(options.template_variable), marker=options.marker,
                    limits=(options.min_pixels, options.max_pixels), date=date_of(folder, options))  # fmt: skip
        chunks = [chunk for n, path in enumerate(options.input) for chunk in chunks_of(path, folder / f"input-{n}.text")]
        if not chunks:
            raise Refused(f"{', '.join(map(str, options.input))}: no conversations")
        job = Job(chat, chunks, folder)
        count = make_parts(job, options.workers, sys.maxsize if options.skip_errors else MOST_ERRORS)
        parts, chosen, dropped = select(job, count, options)
        print(write(job, parts, chosen, options))
        if any(dropped.values()):
            print(f"left out: {dropped['too long']} conversations of more than {options.max_tokens} tokens, {dropped['bad']} bad lines")


def _variable(text):
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def _share(text):
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be between 0 and 1")
    return value


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def parse_arguments(arguments=None):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="model folder: tokenizer.json, tokenizer_config.json, config.json, and a chat template; "
                        "preprocessor_config.json or processor_config.json for pictures")  # fmt: skip
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help="JSONL, JSON or Parquet files, in this order")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="sample file to write, .h5")
    parser.add_argument("--validation-output", type=Path, metavar="FILE", help="second sample file, of conversations that --output lacks")
    parser.add_argument("--validation-share", type=_share, metavar="X", help="share of the conversations that --validation-output gets, "
                        "chosen by their contents; equal ones stay together (default: 0.05)")  # fmt: skip
    parser.add_argument("--max-tokens", type=_positive, metavar="N", help="longest conversation, in tokens of the model: a picture has many")
    parser.add_argument("--too-long", choices=("drop", "refuse"), default="drop", help="what --max-tokens does (default: drop)")
    parser.add_argument("--skip-errors", action="store_true", help="leave bad lines out, and count them, instead of refusing the input")
    parser.add_argument("--workers", type=_positive, default=len(os.sched_getaffinity(0)), metavar="N",
                        help="processes (default: one per core); the output does not depend on them")  # fmt: skip
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the first N conversations, with what is learned in [[...]]")
    model = parser.add_argument_group("in place of what the folder says")
    model.add_argument("--chat-template", type=Path, metavar="FILE", help="Jinja template, for instance one with {%% generation %%}")
    model.add_argument("--template-variable", type=_variable, action="append", default=[], metavar="NAME=VALUE",
                       help="variable of the template, for instance enable_thinking=false")  # fmt: skip
    model.add_argument("--date", type=datetime.datetime.fromisoformat, metavar="DATE", help="date that a template prints (default: today)")
    model.add_argument("--marker", metavar="TOKEN", help="token that stands for a picture (default: image_token_id of config.json)")
    model.add_argument("--min-pixels", type=_positive, metavar="N", help="scale smaller pictures up to N pixels, width x height")
    model.add_argument("--max-pixels", type=_positive, metavar="N", help="scale larger pictures down to N pixels, width x height")
    options = parser.parse_args(arguments)
    if options.validation_share and not options.validation_output:
        parser.error("--validation-share needs --validation-output")
    if options.too_long == "refuse" and options.max_tokens is None:
        parser.error("--too-long needs --max-tokens")
    if options.validation_output and options.validation_output.resolve() == options.output.resolve():
        parser.error("--validation-output must differ from --output")
    options.validation_share = options.validation_share or 0.05
    options.max_tokens = options.max_tokens or sys.maxsize
    return options


def _terminate(*_):
    raise KeyboardInterrupt


def main(arguments=None, read=read_chat):
    options = parse_arguments(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        make(options, read)
    except (Refused, FolderError, InputError) as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
    except BrokenProcessPool:
        print("a process ended unexpectedly, perhaps for lack of memory; give the same command with fewer --workers", file=sys.stderr)
        sys.exit(FAILED)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command continues, from {options.output}.parts", file=sys.stderr)
        sys.exit(STOPPED)
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
