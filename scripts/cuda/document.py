"""Reads and replaces generated tables in documents. Each table is between two markers with its name."""


def markers(name):
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"


def read_between(text, name):
    begin, end = markers(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"the document needs one line {begin.strip()} and, after it, one line {end}")
    return text.split(begin)[1].split(end)[0]


def write_between(text, name, table):
    begin, end = markers(name)
    old = read_between(text, name)
    return text.replace(begin + old + end, begin + table + end)
