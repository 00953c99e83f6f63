"""Compares the table of docs/architecture.md with the links in CMakeLists.txt and with the includes of the files of src/."""

import re
import sys
from pathlib import Path


def links_of(cmake):
    """{folder: the folders that it links}. A library has underscores in its name where its folder has slashes."""
    found = re.findall(r"^maestro_library\(([\w/]+)([^)]*)\)", cmake, re.MULTILINE)
    folders = {folder.replace("/", "_"): folder for folder, _ in found}
    return {folder: {folders[name] for name in re.findall(r"\bmaestro_(\w+)", rest)} for folder, rest in found}


def table_of(document):
    """{folder: the folders in the last column of its row}."""
    rows = re.findall(r"^\| `([\w/]+)` \|.*\| ([\w/, ]*) ?\|$", document, re.MULTILINE)
    return {folder: set(uses.replace(",", " ").split()) for folder, uses in rows}


def reach(links, folder):
    """The folders that a folder may include: itself, what it links, and what those link."""
    seen, rest = set(), [folder]
    while rest:
        if (at := rest.pop()) not in seen:
            seen.add(at)
            rest += links[at]
    return seen


def includes_of(place, folders):
    """The folders whose headers the files of a folder include: for each include the longest name that matches."""
    files = [f for ending in ("cpp", "hpp", "cu", "cuh") for f in place.glob(f"**/*.{ending}")]
    paths = {name for f in files for name in re.findall(r'^#include "([\w/]+)/[^/"]+"', f.read_text(), re.MULTILINE)}
    found = {max((x for x in folders if path == x or path.startswith(x + "/")), key=len, default=path) for path in paths}
    return found - {"support"}


def main(source):
    links = links_of((source / "CMakeLists.txt").read_text())
    table = table_of((source / "docs/architecture.md").read_text())
    # A folder of src/ is a library, or holds folders that are.
    parents = {x.split("/")[0] for x in links if "/" in x}
    tops = [p for p in [*(source / "src").iterdir(), source / "kernels"] if p.is_dir()]
    places = {p.name: p for p in tops if p.name not in parents}
    places |= {f"{p.name}/{q.name}": q for p in tops if p.name in parents for q in p.iterdir()}
    folders = set(places)
    wrong = [f"src/{f}: not in the {what}" for what, known in (("links", links), ("table", table))
             for f in sorted(folders ^ set(known))]  # fmt: skip
    for folder in sorted(folders & set(links) & set(table)):
        if table[folder] != links[folder]:
            wrong.append(f"{folder}: links {sorted(links[folder])}, the table says {sorted(table[folder])}")
        included = includes_of(places[folder], folders)
        wrong += [f"{folder}: includes {x}, which it does not reach" for x in sorted(included - reach(links, folder))]
        # A link that brings nothing does not belong there. base brings fmt, too.
        wrong += [f"{folder}: links {x} and includes nothing of it" for x in sorted(links[folder] - {"base"})
                  if not included & reach(links, x)]  # fmt: skip
    print("\n".join(wrong) or f"{len(folders)} folders agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
