"""Reads and replaces generated tables in documents. Each table is between two markers with its name."""


def markers(name):
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"


def read_between(text, name):
    begin, end = markers(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"the document needs one line {begin.strip()} and, after it, one line {end}")
    return text.split(begin)[1].split(end)[0]


def write_or_check(path, name, table, check, script):
    """Writes a table to the document or, with `check`, compares. Returns the exit code."""
    text = path.read_text()
    if not check:
        path.write_text(write_between(text, name, table))
    elif read_between(text, name) != table:
        print(f"{path}: the table \"{name}\" differs from what the operations count: regenerate it with {script}")
        return 1
    else:
        print(f"the table \"{name}\" equals what the operations count")
    return 0


def write_between(text, name, table):
    begin, end = markers(name)
    old = read_between(text, name)
    return text.replace(begin + old + end, begin + table + end)
