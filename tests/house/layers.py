"""Compares the table of docs/architecture.md with the links of CMakeLists.txt and with what the files of src/ include."""

import re
import sys
from pathlib import Path


def links_of(cmake):
    """Folder -> folders that it links, as written."""
    found = re.findall(r"^maestro_library\((\w+)([^)]*)\)", cmake, re.MULTILINE)
    return {folder: set(re.findall(r"\bmaestro_(\w+)", rest)) for folder, rest in found}


def table_of(document):
    """Folder -> what its last column names."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\w, ]*) ?\|$", document, re.MULTILINE)
    return {folder: set(uses.replace(",", " ").split()) for folder, uses in rows}


def reach(links, folder):
    """What a folder may include: itself, what it links, and what that links."""
    seen, rest = set(), [folder]
    while rest:
        if (at := rest.pop()) not in seen:
            seen.add(at)
            rest += links[at]
    return seen


def includes_of(folder):
    files = [f for ending in ("cpp", "hpp", "cu", "cuh") for f in folder.glob(f"**/*.{ending}")]
    return {name for f in files for name in re.findall(r'^#include "(\w+)/', f.read_text(), re.MULTILINE)}


def main(source):
    links = links_of((source / "CMakeLists.txt").read_text())
    table = table_of((source / "docs/architecture.md").read_text())
    places = {p.name: p for p in [*(source / "src").iterdir(), source / "kernels"] if p.is_dir()}
    folders = set(places)
    wrong = [f"src/{f}: not in the {what}" for what, known in (("links", links), ("table", table))
             for f in sorted(folders ^ set(known))]  # fmt: skip
    for folder in sorted(folders & set(links) & set(table)):
        if table[folder] != links[folder]:
            wrong.append(f"{folder}: links {sorted(links[folder])}, the table says {sorted(table[folder])}")
        included = includes_of(places[folder])
        wrong += [f"{folder}: includes {x}, which it does not reach" for x in sorted(included - reach(links, folder))]
        # A link that brings nothing is a door in the wrong wall. base brings fmt, too.
        wrong += [f"{folder}: links {x} and includes nothing of it" for x in sorted(links[folder] - {"base"})
                  if not included & reach(links, x)]  # fmt: skip
    print("\n".join(wrong) or f"{len(folders)} folders agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
