"""Random decks of tiny models in random layouts, by seed; the numbers of a deck do not depend on its layout."""

import dataclasses
import json
import math
import random

VISION = '''
[model.eye]
kind = "vision"
layers = 4
width = 48
heads = 6
head_dim = 8
mlp = 60
patch = 8
merge = 2
channels = 1
'''
LANGUAGE = '''
[model.{name}]
kind = "language"
layers = {layers}
width = 48
heads = 12
kv_heads = {kv}
head_dim = 4
mlp = {mlp}
vocabulary = 260
tie_embeddings = {tied}
{experts}'''
GRAPHS = {  # sections, edges
    "vision-language": (["vision", "language"], [("vision", "language", "embeddings")]),
    "teacher-student": (["teacher", "student"], [("teacher", "student", "hidden")]),
    "vision-teacher-student": (["vision", "teacher", "student"],
                               [("vision", "teacher", "embeddings"), ("vision", "student", "embeddings"), ("teacher", "student", "hidden")]),
    "two-visions": (["vision", "frozen-vision", "teacher", "student"],
                    [("frozen-vision", "teacher", "embeddings"), ("vision", "student", "embeddings"), ("teacher", "student", "hidden")]),
}
HEADS = {"vision": 6, "frozen-vision": 6}
LAYERS = {"teacher": 5}  # 4 elsewhere
# Parts of a section that trains, by its model. With tied embeddings the last one of a language model leaves its norm alone.
FREEZE = {"eye": [[], ["patch", "layers.0-1"], ["layers.1", "merger"], ["patch", "layers", "norm"]],
          "reader": [[], ["embedding", "layers.0-2"], ["layers.1-2.mlp", "layers.3.attention.qkv"], ["embedding", "layers"]]}  # fmt: skip
FILES = ["data/glyphs-train.h5", "few.h5", "sizes.h5"]  # half with pictures, one in ten, and of all sizes


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What a deck computes."""

    graph: str
    kv: int
    frozen_vision: bool
    file: str
    batch: int
    tied: bool

    @staticmethod
    def draw(dice):
        graph = dice.choice(list(GRAPHS))
        return Numbers(graph, dice.choice([1, 2, 3, 12]), graph == "vision-teacher-student" or (graph != "two-visions" and dice.random() < 0.2), dice.choice(FILES), dice.choice([7, 12]), dice.random() < 0.5)

    def kv_heads(self, section):
        return HEADS.get(section, self.kv)

    def frozen(self, section):
        return section in ("teacher", "frozen-vision") or (section == "vision" and self.frozen_vision)

    def experts(self, model):
        """Keys of a model with experts; half of the models have none."""
        dice = random.Random(f"experts {self} {model}")
        if dice.random() < 0.5:
            return ""
        router = dice.choice(["softmax", "sigmoid"])
        keys = {"experts": 12, "experts_per_token": dice.choice([1, 2, 3, 12]), "expert_mlp": 12, "shared_expert_mlp": dice.choice([0, 10]),
                "dense_layers": dice.choice([0, 1, 3]), "router": router, "router_normalize": dice.random() < 0.5, "balance": dice.choice(["none", "loss", "bias"])}
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())

    def freeze(self, section, model):
        return [] if self.frozen(section) else random.Random(f"freeze {self} {section}").choice(FREEZE[model])


def text(numbers, layouts, run="", schedule="", extra=None):
    """The deck's text. `layouts`: {section: the lines of its [section.layout]}, `extra`: {section: further lines of its [[section]]}."""
    n, (sections, edges) = numbers, GRAPHS[numbers.graph]
    deck = f'''[run]
name = "random"
seed = 3
output = "runs/random"
device = "cpu"
{run}
[data]
train = "{n.file}"
global_batch = {n.batch}
sequence_length = 512
[train]
steps = 3
log_every = 1
{(extra or {}).get("train", "")}
[optimizer]
learning_rate = 2e-3
warmup_steps = 20
[checkpoint]
every = 0
[schedule]
{schedule}
'''
    deck += VISION + LANGUAGE.format(name="reader", layers=4, kv=n.kv, mlp=100, tied=str(n.tied).lower(), experts=n.experts("reader"))
    deck += LANGUAGE.format(name="expert", layers=5, kv=n.kv, mlp=72, tied="true", experts=n.experts("expert"))
    for section in sections:
        model = {"vision": "eye", "frozen-vision": "eye", "teacher": "expert"}.get(section, "reader")
        frozen = 'mode = "forward"\nweights = "random"\n' if n.frozen(section) else f"freeze = {json.dumps(n.freeze(section, model))}\n"
        deck += f'[[section]]\nname = "{section}"\nmodel = "{model}"\n{frozen}{(extra or {}).get(section, "")}\n[section.layout]\n{layouts[section]}\n'
        if section == "student":
            deck += "[section.distill]\nalpha = 0.7\n"
    for up, down, tensor in edges:
        deck += f'[[edge]]\nfrom = "{up}"\nto = "{down}"\ntensor = "{tensor}"\n'
    return deck


def reference(numbers):
    """On one rank."""
    sections = GRAPHS[numbers.graph][0]
    extra = {s: "micro_batch = 4\nwindow = 3\n" + (f'colocate_with = "{sections[0]}"' if s != sections[0] else "") for s in sections}
    return text(numbers, {s: "dp = 1" for s in sections}, extra=extra)


def fits(heads, kv, tp, cp, kind):
    """As docs/layouts.md says."""
    either = lambda a, b: a % b == 0 or b % a == 0  # noqa: E731
    if heads % tp or not either(kv, tp):
        return False
    return kind == "ring" or (heads // tp % cp == 0 and either(max(1, kv // tp), cp))


def lane_replicas(layouts, shared):
    """How many replicas of each section are on a lane, which holds whole replicas of all sections on its ranks and all ranks that share
    experts."""
    ranks = {s: v["tp"] * v["cp"] for s, v in layouts.items()}
    needed = {s: math.lcm(ranks[s], v.get("ep", 1) * v.get("etp", 1)) for s, v in layouts.items()}
    host = lambda s: shared.get(s, s)  # noqa: E731
    return {s: math.lcm(*(n for other, n in needed.items() if host(other) == host(s))) // ranks[s] for s in layouts}


def share_experts(layouts, numbers, seed, problem):
    """Draws how the ranks of each section share its experts: those of one replica, or with a `problem` also of several."""
    for s, v in layouts.items():
        if s in HEADS or not numbers.experts("expert" if s == "teacher" else "reader"):
            continue
        ranks, replicas = v["tp"] * v["cp"], 1 if problem is None else v["dp"]
        shares = [(ep, etp) for ep in (1, 2, 3, 4, 6, 12) for etp in (1, 2, 3, 4) if replicas * ranks % math.lcm(ranks, ep * etp) == 0]
        v["ep"], v["etp"] = random.Random(f"experts {seed} {s}").choice(shares)


def add_stages(layouts, shared, seed):
    """Gives the sections of `layouts` pipeline stages, equally many where they share ranks, on at most 8 ranks in all. Returns the ranks."""
    dice = random.Random(f"stages {seed}")

    def ranks():
        return sum(v["dp"] * v["tp"] * v["cp"] * v.get("pp", 1) for s, v in layouts.items() if s not in shared)

    for s in [s for s in layouts if s not in shared]:
        group = [s, *(other for other in shared if shared[other] == s)]
        pp = dice.choice([1, 2, 2, 3, 4])
        if ranks() + (pp - 1) * layouts[s]["dp"] * layouts[s]["tp"] * layouts[s]["cp"] > 8:
            continue
        for member in group:
            layouts[member]["pp"] = pp
            layers, form = LAYERS.get(member, 4), dice.choice(["balanced", "uneven", "chunks"])
            if form == "uneven" and pp > 1:
                borders = sorted(dice.sample(range(1, layers), pp - 1))
                layouts[member]["stages"] = [end - begin for begin, end in zip([0, *borders], [*borders, layers])]
            if form == "chunks" and pp == 2:
                layouts[member]["chunks"] = 2
    return ranks()


def draw(seed, problem=None):
    """(numbers, ranks, deck) of a seed; `problem`: what the deck computes, by another seed, so that several layouts have one reference;
    without it there is no fan-in, and sections share ranks in like layouts alone."""
    dice = random.Random(seed)
    numbers = Numbers.draw(dice)
    if problem is not None:
        numbers = Numbers.draw(random.Random(f"problem {problem}"))
    sections, edges = GRAPHS[numbers.graph]
    while True:
        layouts = {s: {"dp": dice.choice([1, 1, 2, 3, 4]), "tp": dice.choice([1, 2, 3, 4, 6]), "cp": dice.choice([1, 1, 2, 3, 4]),
                       "cp_kind": dice.choice(["ring", "all-to-all"])} for s in sections}
        size = {s: v["dp"] * v["tp"] * v["cp"] for s, v in layouts.items()}
        if not all(fits(HEADS.get(s, 12), numbers.kv_heads(s), v["tp"], v["cp"], v["cp_kind"]) for s, v in layouts.items()):
            continue
        if problem is None and any(layouts[down]["dp"] % layouts[up]["dp"] for up, down, _ in edges):
            continue
        shared = {s: other for i, s in enumerate(sections) for other in sections[:i]
                  if size[s] == size[other] and (problem is not None or layouts[s]["dp"] == layouts[other]["dp"]) and dice.random() < 0.6}
        shared = {s: other for s, other in shared.items() if other not in shared}
        share_experts(layouts, numbers, seed, problem)
        of_lane = lane_replicas(layouts, shared)
        if any(v["dp"] % of_lane[s] for s, v in layouts.items()):
            continue
        groups = {s: v["dp"] // of_lane[s] for s, v in layouts.items()}
        if any(groups[down] % groups[up] and groups[up] % groups[down] for up, down, _ in edges):
            continue
        ranks = sum(n for s, n in size.items() if s not in shared)
        if 2 <= ranks <= 8:
            break
    if problem is not None:
        ranks = add_stages(layouts, shared, seed)
    micro = {s: dice.randint(1, 5) for s in sections}
    extra = {}
    for s in sections:
        downs = [micro[down] * of_lane[down] for up, down, _ in edges if up == s]
        least = -(-max(downs) // (micro[s] * of_lane[s])) if downs else 1
        window = 0 if dice.random() < 0.1 else least + dice.choice([0, 0, 1, 3])
        extra[s] = f"micro_batch = {micro[s]}\nwindow = {window}\n" + (f'colocate_with = "{shared[s]}"' if s in shared else "")
    tuning = random.Random(f"tuning {seed}")
    for s in sections:
        recompute = tuning.choice(["", "none", "cheap", "layer"])
        if recompute:
            extra[s] += f'\nrecompute = "{recompute}"'
        if recompute in ("cheap", "layer"):
            extra[s] += f"\nrecompute_layers = {tuning.choice([0, 1, 2])}"
    extra["train"] = f'recompute = "{dice.choice(["none", "cheap", "layer"])}"'
    schedule = f'policy = "{dice.choice(["wavefront", "fifo", "lpt"])}"\ndispatch = "{dice.choice(["planned", "ready"])}"'
    run = f'timeout_s = 20\ntransport = "{dice.choice(["auto", "window", "messages"])}"'
    lines = {s: "\n".join(f'{k} = "{v}"' if k == "cp_kind" else f"{k} = {v}" for k, v in layouts[s].items()) for s in sections}
    return numbers, ranks, text(numbers, lines, run, schedule, extra)


if __name__ == "__main__":
    import sys

    seed = int(sys.argv[1])
    found = draw(seed, seed // 4)
    print(f"# {found[1]} ranks, {found[0]}\n{found[2]}")
