"""States of a directory that a loss of power may leave, from what record_shim.c has recorded.

What POSIX promises, and no more: after fsync of a file its contents are on the disk, after fsync of a directory its entries are. Of all other
changes any may be there and any may be lost: a write in part, by blocks of 4 KiB, and the entries of a directory each by itself. A rename is
there or not, never half of it. fsync of a file says nothing about its name.
"""

import struct
from dataclasses import dataclass, field

CREATE, WRITE, TRUNCATE, RESERVE, SYNC_BEGIN, SYNC_END, RENAME, REMOVE, MKDIR = range(1, 10)
HEADER = struct.Struct("<IIIIQQQ")
BLOCK = 4096


@dataclass
class Record:
    kind: int
    path: str
    other: str
    offset: int
    size: int
    data: bytes


def read_records(log):
    raw, at, records = log.read_bytes(), 0, []
    while at < len(raw):
        kind, path, other, _, offset, size, payload = HEADER.unpack_from(raw, at)
        at += HEADER.size
        texts = raw[at : at + path].decode(), raw[at + path : at + path + other].decode()
        at += path + other
        records.append(Record(kind, *texts, offset, size, raw[at : at + payload]))
        at += payload
    return records


@dataclass
class Node:
    """A file (`durable` contents, and changes to them) or a directory (`durable` entries, and changes to them)."""

    folder: bool
    durable: object
    pending: list = field(default_factory=list)  # (number of the record, change)
    now: dict = None  # of a directory: its entries as the program sees them


class Disk:
    """Follows the records, from a directory that is on the disk as it is."""

    def __init__(self, root):
        self.prefix = str(root)
        self.root = self._load(root)
        self.syncs = {}
        self.count = 0

    def _load(self, path):
        if not path.is_dir():
            return Node(False, path.read_bytes())
        entries = {entry.name: self._load(entry) for entry in path.iterdir()}
        return Node(True, entries, now=dict(entries))

    def _find(self, path):
        """The directory that has this path, its last name, and the node, None where there is none."""
        names = [name for name in path[len(self.prefix) :].split("/") if name not in ("", ".")]
        if not names:
            return None, "", self.root
        folder = self.root
        for name in names[:-1]:
            folder = folder.now.get(name) if folder else None
        return folder, names[-1], folder.now.get(names[-1]) if folder else None

    def _entry(self, folder, changes):
        """`changes`: {name: node or None}, all of it or nothing."""
        folder.pending.append((self.count, changes))
        for name, node in changes.items():
            if node is None:
                folder.now.pop(name, None)
            else:
                folder.now[name] = node

    def follow(self, record):
        self.count += 1
        folder, name, node = self._find(record.path)
        if record.kind in (CREATE, MKDIR):
            if folder and node is None:
                made = Node(True, {}, now={}) if record.kind == MKDIR else Node(False, b"")
                self._entry(folder, {name: made})
        elif record.kind in (WRITE, TRUNCATE, RESERVE):
            if node:
                node.pending.append((self.count, record))
        elif record.kind == RENAME and node:
            to, new, _ = self._find(record.other)
            assert to is folder, "a rename between directories"
            self._entry(folder, {name: None, new: node})
        elif record.kind == REMOVE and node:
            self._entry(folder, {name: None})
        elif record.kind == SYNC_BEGIN:
            self.syncs[record.offset] = (node, self.count)
        elif record.kind == SYNC_END:
            node, begin = self.syncs.pop(record.offset)
            if node:
                self._settle(node, begin)

    def _settle(self, node, begin):
        covered = [change for number, change in node.pending if number < begin]
        node.pending = [(number, change) for number, change in node.pending if number >= begin]
        node.durable = applied(node, covered)

    def settle(self, path):
        """As if everything that has changed in a file, or in the entries of a directory, had reached the disk by itself."""
        node = self._find(path)[2]
        self._settle(node, self.count + 1)

    def write(self, target, keep, node=None):
        """Makes the state as a directory. keep(): whether a change, or a block of a write, that nothing has synced is there."""
        node = node or self.root
        contents = applied(node, [change for _, change in node.pending if node.folder is False or keep()], None if node.folder else keep)
        if not node.folder:
            target.write_bytes(contents)
            return
        target.mkdir()
        for name, entry in contents.items():
            self.write(target / name, keep, entry)


def applied(node, changes, keep=None):
    """The durable contents after these changes; with `keep`, after those parts of them for which it is true."""
    if node.folder:
        entries = dict(node.durable)
        for change in changes:
            for name, entry in change.items():
                if entry is None:
                    entries.pop(name, None)
                else:
                    entries[name] = entry
        return entries
    data = bytearray(node.durable)
    for change in changes:
        if change.kind == WRITE:
            for at in range(0, change.size, BLOCK):
                if keep is None or keep():
                    part, begin = change.data[at : at + BLOCK], change.offset + at
                    data.extend(bytes(max(0, begin - len(data))))
                    data[begin : begin + len(part)] = part
        elif keep is None or keep():
            if change.kind == TRUNCATE:
                del data[change.size :]
            data.extend(bytes(max(0, change.size - len(data))))
    return bytes(data)
