#!/usr/bin/python3
"""other_shares.py BUILD SHARE SHARES: prints the names of the nightly tests of a build that are not in one of its shares. Tests that differ in
their number of ranks alone, or in a last part `begin` or `end`, are in the same share. The tests of mutants are in all: they try a share of
their lists."""

import json
import re
import subprocess
import sys

build, share, shares = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", "-L", "nightly"], check=True, capture_output=True, text=True).stdout


def labels(test):
    return next((each["value"] for each in test["properties"] if each["name"] == "LABELS"), [])


# ctest adds the tests that make what others need, whatever their labels.
names = [test["name"] for test in json.loads(listed[listed.index("{"):])["tests"] if "nightly" in labels(test) and not test["name"].startswith("mutants.")]
groups = sorted({re.sub(r"\.(\d+|begin|end)$", "", name) for name in names})
for name in names:
    if groups.index(re.sub(r"\.(\d+|begin|end)$", "", name)) % shares != share - 1:
        print(re.escape(name))
