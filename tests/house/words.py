"""Fails where the tree uses a retired word, or where a line of a document is longer than 100 columns.

Maestro uses the terms of PyTorch, Megatron, NCCL and MPI. `NAMES` lists retired identifiers and `PHRASES` retired phrases, each with
the standard term to use instead. Identifiers are searched as whole words in code and in the code spans of documents, phrases in
comments, strings and documents. Words that are ordinary English as well (`own`, `taken`) are retired as identifiers only."""

import bisect
import re
import sys
from pathlib import Path

NAMES = {
    "Taken": "HostCopy",
    "ReadOut": "DeviceToHostReader",
    "given_ids": "device_ids",
    "Peers no_peers": "Mesh, or a process group",
    "make_paper_group": "make_meta_group",
    "on_paper": "a name with `meta`, `simulated` or `predicted`",
    "RowShares": "SequenceParallel",
    "gathers": "uses_ulysses",
    "Visible": "VarlenMask",
    "see_before": "causal",
    "travelling": "ring_rows",
    "Turning": "KvRingBuffer",
    "attends": "attn_out, or `attention`",
    "Holding Holdings Held": "RowPlacement",
    "RowRun": "RowRange",
    "Seat": "GroupRank",
    "Stretch": "CopySegment",
    "Letter": "SendRequest",
    "Parcel": "CopyBatch",
    "Mail": "MessageEndpoint",
    "together_": "lane_comm_",
    "agree_on": "broadcast_task",
    "Survey survey": "Preflight",
    "take_stock": "plan_memory",
    "Store": "MemoryPool",
    "Claim": "MemoryClaim",
    "Dealer": "Partitioner",
    "Cookbook": "ConstructionRules",
    "food_s food_s_": "backlog_s",
    "eat_later": "a name with `backlog`",
    "hungriest": "a name with `backlog`",
    "squeezed": "window_limited",
    "weights_are_numbers": "all_finite",
    "kUneven": "kMaxImbalance",
    "most_sent": "max_rows_sent",
    "Fullest": "max_load",
    "any_order": "worst_case",
    "key_heads key_head": "kv_heads",
    "VocabularyPart": "VocabularyShard",
    "run_back by_stretches add_up": "a name that says what is run, iterated or summed",
    "own": "local, or the name of what it belongs to",
    "given": "the name of the argument, or `requested`",
    "taken": "allocated, used",
    "told": "notified, sent",
    "said": "predicted, reported, message",
    "took": "elapsed_s, measured",
    "brought": "received",
    "ways": "transports, kinds",
}

PHRASES = {
    r"on paper": "on the meta backend; simulated, predicted",
    r"told apart": "identified, distinguished",
    r"of (?:its|their|our|your) own": "dedicated, separate",
    r"what (?:is|was|are|were) given": "the arguments",
    r"gpus? that (?:is|are) not there": "simulated CUDA runtime, simulated GPUs",
    r"(?:is|are|was|were) not there": "missing, absent; simulated, emulated",
    r"the compiler's word": "ptxas report",
    r"go(?:es)? round(?: the ring)?": "is exchanged by ring",
    r"takes? part": "participates",
    r"(?:number|stream) that is (?:none|not)|numbers that are (?:none|not)|(?:is|are) (?:not |no )?numbers?": "NaN or Inf; invalid",
    r"ways (?:across|of) (?:an|the) edges?": "transports of an edge",
    r"work(?:s|ed|ing)? out": "compute",
    r"(?:rules|word|language) of the house|in the house": "of the project",
    r"share[sd]? out|sharing out": "split, shard, partition",
    r"(?:bear|bears|bore) with": "tolerate",
    r"speaks?|spoke": "report, use, name",
    r"deal(?:s|t)? out|dealt": "partition, distribute",
    r"hungr(?:y|ier|iest)": "with the smallest backlog",
    r"squeezed": "limited by the window",
    r"(?:step|step's) borders?|at the border": "step boundary",
    r"naps?": "sleep",
    r"anew|afresh": "again, from scratch",
    r"lest|whence|thereof|therein|whither|for want of": "plain English",
    r"(?:of|for|by) whom|whoever": "the subject of the sentence",
    r"says? of|for people|at hand|the like": "plain English",
    r"(?:a|the|no) fault of": "caused by, an error in",
    r"rows brought|brings? rows": "received rows",
    r"sets? a word|pairs? of words": "flag",
    r"asked (?:at|within)": "target",
    r"(?<!dot\s)(?<!outer\s)(?<!cartesian\s)(?<!\[)products?(?!\sof\s|\.#)": "GEMM, matmul",
}

FOLDERS = ("src", "kernels", "tests", "bench", "scripts", "postproc", "docs", "inputs", "cmake")
COLUMNS = 100

STRING = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
CPP = re.compile(rf'//[^\n]*|/\*(?:.|\n)*?\*/|R"\((?:.|\n)*?\)"|{STRING}')
SCRIPT = re.compile(rf'(?<![\w$&{{(])#[^\n]*|"""(?:.|\n)*?"""|{STRING}|\'[^\'\n]*\'')
# What is prose in a file, and in a document what is code.
SPANS = {**dict.fromkeys((".cpp", ".hpp", ".cu", ".cuh", ".c", ".h"), CPP), **dict.fromkeys((".py", ".sh", ".sbatch", ".toml", ".txt", ".cmake"), SCRIPT),
         ".md": re.compile(r"```(?:.|\n)*?```|`[^`\n]+`")}  # fmt: skip
COMMENT_SIGN = re.compile(r"(?m)^[ \t]*(//+|#+|\*)")

ALL_NAMES = {name: term for key, term in NAMES.items() for name in key.split()}
FIND_NAMES = re.compile(rf"\b(?:{'|'.join(ALL_NAMES)})\b")
# A phrase may go over the end of a line.
FIND_PHRASES = re.compile("|".join(rf"\b({phrase})\b" for phrase in PHRASES).replace(" ", r"[ \n]{1,40}"))
TERMS = list(PHRASES.values())


def split(path, text):
    """The code and the prose of a file. Both are as long as the file, so that positions stay: in the code, prose is blank, and in the
    prose, code is a character that no phrase spans."""
    parts, at = [], 0
    for found in SPANS[path.suffix].finditer(text):
        parts += [(text[at : found.start()], False), (found[0], True)]
        at = found.end()
    parts.append((text[at:], False))
    in_document = path.suffix == ".md"
    code = "".join(part if within == in_document else blank(part) for part, within in parts)
    prose = "".join(hide(part) if within == in_document or is_key(part) else COMMENT_SIGN.sub(lambda sign: " " * len(sign[0]), part)
                    for part, within in parts)  # fmt: skip
    return code, prose


def is_key(part):
    """Whether it is a string without spaces, such as a key of a deck: neither code nor prose."""
    return part[:1] in ("'", '"') and not re.search(r"\s", part)


class Hidden(dict):
    """For str.translate: every character but white space becomes one that no phrase has."""

    def __missing__(self, character):
        self[character] = character if chr(character).isspace() else "\0"
        return self[character]


HIDDEN = Hidden()


def blank(text):
    return "\n".join(" " * len(line) for line in text.split("\n"))


def hide(text):
    return text.translate(HIDDEN)


def findings(path, text):
    """(line, word, standard term) for every retired word of a file."""
    ends = [found.start() for found in re.finditer("\n", text)]
    code, prose = split(path, text)
    found = [(hit.start(), hit[0], ALL_NAMES[hit[0]]) for hit in FIND_NAMES.finditer(code)]
    found += [(hit.start(), " ".join(hit[0].split()), TERMS[hit.lastindex - 1]) for hit in FIND_PHRASES.finditer(prose.lower())]
    return sorted((bisect.bisect(ends, at) + 1, word, term) for at, word, term in found)


def long_lines(text):
    """Lines of a document that are too long. A row of a table and a line that is one link or path cannot be broken."""
    return [number for number, line in enumerate(text.splitlines(), 1)
            if len(line) > COLUMNS and not line.startswith("|") and len(line.split()) > 2]  # fmt: skip


def files_of(source):
    for path in sorted([p for name in FOLDERS for p in (source / name).rglob("*")] + [*source.glob("*.md"), source / "CMakeLists.txt"]):
        if path.suffix in SPANS:
            if path.is_file() and path != Path(__file__).resolve() and "__pycache__" not in path.parts:
                yield path


def check_the_search():
    """The search must find what it is for, in code and in prose, and only there."""
    code = 'int own = 1; // a name of its\n   // own, own\nauto text = "on paper, taken"; paper(on, owner, "product");\n'
    expected = [(1, "of its own"), (1, "own"), (3, "on paper")]
    assert [hit[:2] for hit in findings(Path("a.cpp"), code)] == expected, findings(Path("a.cpp"), code)
    document = "Taken, `taken`,\non\npaper, `on paper`, dot products, products\n"
    expected = [(1, "taken"), (2, "on paper"), (3, "products")]
    assert [hit[:2] for hit in findings(Path("a.md"), document)] == expected, findings(Path("a.md"), document)
    script = "own = 1  # of our own\nx = f'{own} told apart' + \"trained anew\"\n"
    expected = [(1, "of our own"), (1, "own"), (2, "anew"), (2, "told apart")]
    assert [hit[:2] for hit in findings(Path("a.py"), script)] == expected, findings(Path("a.py"), script)
    assert long_lines("a " * 51 + "\n" + "|" * 101 + "\n" + "a" * 101) == [1]


def main(source, only=""):
    """Prints the findings of all files, or of those whose paths begin with `only`."""
    check_the_search()
    found, files = [], 0
    for path in files_of(source):
        place, text = str(path.relative_to(source)), path.read_text(errors="replace")
        if place.startswith(only):
            files += 1
            found += [f"{place}:{line}: {word!r} is retired; use: {term}" for line, word, term in findings(path, text)]
            found += [f"{place}:{line}: longer than {COLUMNS} columns" for line in (long_lines(text) if path.suffix == ".md" else [])]
    print("\n".join(found) or f"{files} files use no retired word")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), *sys.argv[2:3]))
