#!/usr/bin/env python3
"""Checks whole sample files: the index and every token, weight and pixel. The exit code is 65 if a file is damaged or breaks a rule
of the format, and 66 if one is missing. Training makes the same checks, but only of the samples that it reads."""

import argparse
import os
import sys

import apt_packages  # noqa: F401
from sample_file import SampleError
from sample_reader import read_samples


def problem_of(path):
    """Returns a message and an exit code if something is wrong with the file, otherwise None."""
    if not os.path.isfile(path):
        return f"{path}: no such file", 66
    samples = tokens = 0
    try:
        for sample in read_samples(path):
            samples += 1
            tokens += len(sample.tokens)
    except SampleError as error:
        return f"{error}; make the file again with scripts/data", 65
    except Exception as error:  # h5py raises many types if the metadata of HDF5 are damaged
        return f"{path}: {error!r}: not a sample file, or damaged; make it again with scripts/data", 65
    print(f"{path}: {samples} samples, {tokens} tokens, no errors", flush=True)
    return None


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="sample files")
    problems = [problem for path in parser.parse_args(arguments).files if (problem := problem_of(path))]
    for message, _ in problems:
        print(message, file=sys.stderr, flush=True)
    if problems:
        sys.exit(problems[0][1])


if __name__ == "__main__":
    main()
