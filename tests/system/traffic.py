"""What the ranks of inputs/layouts.toml have to send each other, computed from formulas. The program contributes only which samples
made up which micro-batch. For every rank: {group: [messages, bytes]} with the groups tp, cp, keys and data."""

from collections import Counter

PIECE = 1 << 20  # elements that a sum takes of a rank at a time
CHUNK = 256  # rows whose logits exist at a time
BLOCK = 16  # parameters start in whole blocks of elements, and shards consist of them
BYTES = 4  # fp32, as all there is


def share(size, index, count):
    """As even as can be, the longer ones first."""
    return size // count + (index < size % count)


def begin(size, index, count):
    return sum(share(size, i, count) for i in range(index))


class Layout:
    def __init__(self, dp=1, tp=1, cp=1, kind="ring"):
        self.dp, self.tp, self.cp, self.kind = dp, tp, cp, kind
        self.lane = tp * cp
        self.ranks = dp * self.lane


# -- who holds which rows ------------------------------------------------------------------------------------------------

def zigzag(lengths, cp):
    """Rows (sample, row) of every slice of causal sequences: 2 cp chunks each, slice i has chunks i and 2 cp - 1 - i."""
    slices = [[] for _ in range(cp)]
    for sequence, length in enumerate(lengths):
        for c in range(cp):
            for chunk in [c, 2 * cp - 1 - c] if cp > 1 else [None]:
                first, count = (0, length) if chunk is None else (begin(length, chunk, 2 * cp), share(length, chunk, 2 * cp))
                slices[c] += [(sequence, row) for row in range(first, first + count)]
    return slices, [cp > 1] * len(lengths)


def dealt(units, cp):
    """Units (picture, unit) of every slice of pictures: whole ones, the longest first, each to the slice that has least; the
    longest are cut, as few as leave no slice more than 1.1 times an even share."""
    order = sorted(range(len(units)), key=lambda i: -units[i])
    for cuts in range(len(units) + 1):
        load, where = [0] * cp, {}
        for i in order[:cuts]:
            for c in range(cp):
                load[c] += share(units[i], c, cp)
        for i in order[cuts:]:
            where[i] = load.index(min(load))
            load[where[i]] += units[i]
        if max(load) <= 1.1 * -(-sum(units) // cp):
            break
    slices = [[] for _ in range(cp)]
    for i, count in enumerate(units):
        for c in range(cp):
            first, n = (begin(count, c, cp), share(count, c, cp)) if i not in where else (0, count * (where[i] == c))
            slices[c] += [(i, unit) for unit in range(first, first + n)]
    return slices, [cp > 1 and i not in where for i in range(len(units))]


# -- what a verb sends ---------------------------------------------------------------------------------------------------

class Group:
    """One rank of a group; collects what it sends."""

    def __init__(self, rank, size, sent):
        self.rank, self.size, self.sent = rank, size, sent

    def message(self, elements):
        if elements > 0:
            self.sent[0] += 1
            self.sent[1] += BYTES * elements

    def others(self):
        return [r for r in range(self.size) if r != self.rank]

    def gather(self, rows, columns):
        for _ in self.others():
            self.message(rows[self.rank] * columns)

    def scatter_sum(self, rows, columns):
        for to in self.others():
            left = rows[to] * columns
            while left > 0:
                self.message(min(left, PIECE))
                left -= PIECE

    def sum(self, elements):
        parts = [share(elements, r, self.size) for r in range(self.size)]
        self.scatter_sum(parts, 1)
        self.gather(parts, 1)


class Rank:
    """Of a lane, at (cp, tp): the formulas of a task."""

    def __init__(self, model, layout, cp, tp, sent):
        self.model, self.layout, self.cp = model, layout, cp
        self.tensor, self.context = Group(tp, layout.tp, sent["tp"]), Group(cp, layout.cp, sent["cp"])

    def layers(self, slices, cut, unit, recompute):
        """Forward and backward of all layers. `slices` in units of rows."""
        t, c, m = self.layout.tp, self.layout.cp, self.model
        rows = [unit * len(s) for s in slices]
        local = [unit * share(len(slices[self.cp]), r, t) for r in range(t)]
        ring_rows = [unit * sum(cut[sequence] for sequence, _ in s) for s in slices]
        heads, keys = m["heads"] // t * m["head_dim"], max(m["kv_heads"] // t, 1) * m["head_dim"]
        for _ in range(m["layers"]):
            for _ in range(2 if recompute else 1):  # forward: inputs of the two column-parallel matmuls, sums of the two row-parallel ones
                for _ in range(2):
                    self.tensor.gather(local, m["width"])
                    self.tensor.scatter_sum(local, m["width"])
                self.attention_forward(rows, ring_rows, heads, keys)
            for _ in range(2):  # backward: gradients and inputs of two matmuls each, sums of the inputs' gradients
                self.tensor.gather(local, m["width"])
                self.tensor.gather(local, m["width"])
                self.tensor.scatter_sum(local, m["width"])
            self.attention_backward(rows, ring_rows, heads, keys)
        return local

    def attention_forward(self, rows, ring_rows, heads, keys):
        c, group = self.layout.cp, self.context
        if c > 1 and self.layout.kind == "ring":
            for turn in range(c - 1):  # the keys and values of this slice, then those received
                group.message(2 * ring_rows[(self.cp - turn) % c] * keys)
        for to in group.others() if self.layout.kind != "ring" else []:
            group.message(rows[self.cp] * (heads // c + 2 * max(keys // c, self.model["head_dim"])))
            group.message(rows[to] * (heads // c))

    def attention_backward(self, rows, ring_rows, heads, keys):
        c, group = self.layout.cp, self.context
        if c > 1 and self.layout.kind == "ring":
            for turn in range(c - 1):
                group.message(2 * ring_rows[(self.cp - turn) % c] * keys)
            for turn in range(1, c):  # sums of gradients, the last of which returns to its slice
                group.message(2 * ring_rows[(self.cp - turn) % c] * keys)
        for to in group.others() if self.layout.kind != "ring" else []:
            group.message(rows[self.cp] * (heads // c))
            group.message(rows[to] * (heads // c + 2 * max(keys // c, self.model["head_dim"])))

    def language(self, lengths, targets, recompute):
        """`targets[sample]`: rows that predict the next token."""
        slices, cut = zigzag(lengths, self.layout.cp)
        local = self.layers(slices, cut, 1, recompute)
        self.tensor.scatter_sum(local, self.model["width"])  # embeddings, each rank has some of the tokens
        self.tensor.gather(local, self.model["width"])  # and their gradient
        at, predicting = 0, []
        for rows in local:
            predicting.append(sum(row in targets[sequence] for sequence, row in slices[self.cp][at:at + rows]))
            at += rows
        self.tensor.gather(predicting, self.model["width"])  # the head
        for first in range(0, sum(predicting), CHUNK):
            chunk = min(CHUNK, sum(predicting) - first)
            self.tensor.sum(chunk)  # largest logits
            self.tensor.sum(2 * chunk)  # sums of exponentials, logits of the targets
        self.tensor.scatter_sum(predicting, self.model["width"])

    def vision(self, tokens, out, recompute):
        """`tokens[picture]`: rows that it becomes, merge^2 patches each."""
        unit = self.model["merge"] ** 2
        slices, cut = dealt(tokens, self.layout.cp)
        local = [rows // unit for rows in self.layers(slices, cut, unit, recompute)]
        self.tensor.gather(local, unit * self.model["width"])  # merger
        self.tensor.scatter_sum(local, out)  # projector
        self.tensor.gather(local, out)  # backward
        self.tensor.gather(local, unit * self.model["width"])
        self.tensor.scatter_sum(local, unit * self.model["width"])


# -- parameters ----------------------------------------------------------------------------------------------------------

def parameters(model, kind, out, tp, t):
    """Elements that tp rank `t` of `tp` holds of every parameter, and which of them all tp ranks hold."""
    width, dim = model["width"], model["head_dim"]
    heads, keys, mlp = model["heads"] // tp * dim, max(model["kv_heads"] // tp, 1) * dim, share(model["mlp"], t, tp)
    sizes, common = [], []

    def whole(size):
        sizes.append(size)
        common.append(size)

    for _ in range(model["layers"]):
        for size in (width, dim, dim, width):
            whole(size)
        sizes += [(heads + 2 * keys) * width, width * heads, 2 * mlp * width, width * mlp]
    whole(width)  # the last norm
    if kind == "language":
        sizes.append(share(model["vocabulary"], t, tp) * width)  # the embedding is the head too
    else:
        part = share(out, t, tp)
        for size in (width * model["patch"] ** 2 * model["channels"], width, out):  # patches, their bias, the projector's bias
            whole(size)
        sizes += [part * width * model["merge"] ** 2, part, out * part]
    return sum(-(-size // BLOCK) * BLOCK for size in sizes), sum(common)


def shards(flat, ranks):
    """Elements of each rank's shard: equal ones, so that the flat array ends with padding."""
    return [-(-flat // (ranks * BLOCK)) * BLOCK] * ranks


def initial_weights(model, kind, out, layout, cp, tp, replica, sent):
    """Before the first step: each rank draws or reads the weights of its shard, and all gather the others'."""
    flat, _ = parameters(model, kind, out, layout.tp, tp)
    ranks = layout.dp * layout.cp
    Group(replica * layout.cp + cp, ranks, sent["data"]).gather(shards(flat, ranks), 1)


def optimizer(model, kind, out, layout, cp, tp, replica, sent):
    """A step: what all tp ranks hold summed over them, and keys over those that hold the same, then everything over dp x cp, and
    new weights back."""
    flat, common = parameters(model, kind, out, layout.tp, tp)
    Group(tp, layout.tp, sent["tp"]).sum(common)
    holders = max(layout.tp // model["kv_heads"], 1)
    Group(tp % holders, holders, sent["keys"]).sum(2 * model["head_dim"] * model["width"] * model["layers"])
    ranks = layout.dp * layout.cp
    data = Group(replica * layout.cp + cp, ranks, sent["data"])
    data.scatter_sum(shards(flat, ranks), 1)
    data.gather(shards(flat, ranks), 1)


# -- a run ---------------------------------------------------------------------------------------------------------------

class Sample:
    """From the file: tokens, weights, and how many tokens each picture becomes."""

    def __init__(self, tokens, weights, pictures, marker):
        self.pictures = pictures
        self.targets, self.places, row, picture = set(), [], 0, 0
        for j, token in enumerate(tokens):
            if token == marker:
                self.places += range(row, row + pictures[picture])
                row += pictures[picture]
                picture += 1
                continue
            if j > 0 and weights[j] != 0:
                self.targets.add(row - 1)
            row += 1
        self.length = row


def task_traffic(section, model, layout, samples, out, recompute=False):
    """Of one micro-batch, forward and backward: for every rank of the lane what it sends to its tp and cp ranks, and how
    many rows of the edge it holds."""
    found = []
    for cp in range(layout.cp):
        for tp in range(layout.tp):
            sent = {"tp": [0, 0], "cp": [0, 0]}
            rank = Rank(model, layout, cp, tp, sent)
            if section == "vision":
                tokens = [n for s in samples for n in s.pictures]
                rank.vision(tokens, out, recompute)
                slices, _ = dealt(tokens, layout.cp)
                rows = share(len(slices[cp]), tp, layout.tp)
            else:
                lengths = [s.length for s in samples]
                rank.language(lengths, [s.targets for s in samples], recompute)
                local = zigzag(lengths, layout.cp)[0][cp]
                first = begin(len(local), tp, layout.tp)
                places = Counter((i, row) for i, s in enumerate(samples) for row in s.places)
                rows = sum(places[at] for at in local[first:first + share(len(local), tp, layout.tp)])
            found.append((sent, rows))
    return found
