#!/usr/bin/env python3
"""Writes small folders of the Hugging Face families that Maestro loads, with loss, logits and gradients by transformers in double precision.

    pip install torch transformers safetensors numpy
    python3 make_families.py [FAMILY ...]

Tests read the files and need none of these packages. The weights are random, with a fixed seed. Each folder holds

config.json            as transformers 5 writes it
config_4.57.json       the same model with the keys of transformers 4.57 (`rope_theta`, `rope_scaling`), which published folders have. Text models
                       have `torch_dtype` there as well, the vision tower has the model_type "qwen3_vl", and the experts are counted by `num_experts`
generation_config.json, model.safetensors
                       as transformers writes them; the weights are F32. A tied head is not in the file
reference.safetensors  the samples and what transformers computes for them. S is the number of a sample, P that of a picture in it:
    tokens.S           I64 [N]     token ids. ONE image token stands for a picture, as in sample files of Maestro; in a sequence of the model it becomes
                                   (height / 8) * (width / 8) rows, one per 2 x 2 patches of 4 x 4 pixels
    weights.S          F64 [N]     loss weight of each token as a target: 0.5 * ((index + S) % 3), and 0 for the first token and for pictures
    picture.S.P        U8 [H,W,3]  pixels; the vision tower gets x / 127.5 - 1, twice (temporal_patch_size is 2). No resizing, no padding
    loss               F64 []      sum of weight * -log softmax(logits before the token)[token], divided by the sum of weights, over all samples
    logits.S           F64 [T,V]   T rows: tokens with every picture expanded
    gradient.NAME      F64         gradient of `loss`, for every NAME of model.safetensors, in the shape that it has there. Untied, the rows of
                                   embed_tokens of tokens that occur nowhere have 0. With experts, tokens are drawn so that the router's last chosen
                                   expert leads the next one by LEAST_MARGIN in every row and layer, which rounding to bf16 does not change
    losses             F64 [20]    losses of fine-tuning with torch's AdamW: learning rate 1e-3, betas 0.9 and 0.95, eps 1e-8, weight decay 0.1 of matrices
    positions.S        I64 [3,T]   beside a tower: position of each row by time, height and width
    vision.S.P         F64 [R,C]   its rows of the merger, which replace the R embeddings of a picture
    deepstack.S.P.I    F64 [R,C]   its rows of deepstack merger I, which are added to a picture's rows after text layer I
"""

import contextlib
import importlib
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
VOCABULARY, IMAGE, VIDEO, VISION_START, VISION_END = 48, 45, 44, 46, 47
PATCH, MERGE, TEMPORAL = 4, 2, 2
BLOCK = PATCH * MERGE

LEAST_MARGIN = 0.3  # of the router's logits, whose deviation is about 1

ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2)
VISION_TOKENS = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=VISION_START, vision_end_token_id=VISION_END)
BESIDE_TOWER = dict(ATTENTION, vocab_size=VOCABULARY, hidden_size=24, head_dim=8, num_hidden_layers=3, rms_norm_eps=1e-6, max_position_embeddings=64,
                    rope_parameters=dict(rope_type="default", rope_theta=5000.0, mrope_section=[2, 1, 1], mrope_interleaved=True))  # fmt: skip
TOWER = dict(depth=3, hidden_size=16, intermediate_size=20, num_heads=2, patch_size=PATCH, spatial_merge_size=MERGE, temporal_patch_size=TEMPORAL,
             out_hidden_size=24, num_position_embeddings=16, deepstack_visual_indexes=[0, 1])  # fmt: skip
FAMILIES = {
    # Of the four frequencies, llama3 scaling keeps one, interpolates one and divides two by the factor.
    "llama": dict(
        module="llama", config="LlamaConfig", model="LlamaForCausalLM", lengths=[7, 19, 33], sizes=[[], [], []],
        keys=dict(ATTENTION, vocab_size=VOCABULARY, hidden_size=32, intermediate_size=40, num_hidden_layers=2, rms_norm_eps=1e-5,
                  max_position_embeddings=128, tie_word_embeddings=False,
                  rope_parameters=dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                       original_max_position_embeddings=32)),
    ),
    # A window that is longer than any sample.
    "mistral": dict(
        module="mistral", config="MistralConfig", model="MistralForCausalLM", lengths=[7, 19, 33], sizes=[[], [], []],
        keys=dict(ATTENTION, vocab_size=VOCABULARY, hidden_size=32, head_dim=12, intermediate_size=40, num_hidden_layers=2, rms_norm_eps=1e-5,
                  max_position_embeddings=128, sliding_window=64, tie_word_embeddings=False,
                  rope_parameters=dict(rope_type="default", rope_theta=5000.0)),
    ),
    "qwen2": dict(
        module="qwen2", config="Qwen2Config", model="Qwen2ForCausalLM", lengths=[7, 19, 33], sizes=[[], [], []],
        keys=dict(ATTENTION, vocab_size=VOCABULARY, hidden_size=32, intermediate_size=40, num_hidden_layers=2, rms_norm_eps=1e-6,
                  max_position_embeddings=64, max_window_layers=2, tie_word_embeddings=True,
                  rope_parameters=dict(rope_type="default", rope_theta=5000.0)),
    ),
    "qwen3": dict(
        module="qwen3", config="Qwen3Config", model="Qwen3ForCausalLM", lengths=[7, 19, 33], sizes=[[], [], []],
        keys=dict(ATTENTION, vocab_size=VOCABULARY, hidden_size=24, head_dim=16, intermediate_size=40, num_hidden_layers=2, rms_norm_eps=1e-6,
                  max_position_embeddings=64, max_window_layers=2, tie_word_embeddings=True,
                  rope_parameters=dict(rope_type="default", rope_theta=5000.0)),
    ),
    "qwen3_moe": dict(
        seed=58,  # every expert gets rows, and no choice is close while the model is tuned
        module="qwen3_moe", config="Qwen3MoeConfig", model="Qwen3MoeForCausalLM", lengths=[7, 19, 33], sizes=[[], [], []],
        keys=dict(ATTENTION, vocab_size=VOCABULARY, hidden_size=24, head_dim=8, intermediate_size=40, num_hidden_layers=3, rms_norm_eps=1e-6,
                  num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True, mlp_only_layers=[0],
                  max_position_embeddings=64, max_window_layers=3, tie_word_embeddings=False,
                  rope_parameters=dict(rope_type="default", rope_theta=5000.0)),
    ),
    "qwen3_vl": dict(
        module="qwen3_vl", config="Qwen3VLConfig", model="Qwen3VLForConditionalGeneration", lengths=[17, 11, 13],
        sizes=[[(16, 24), (32, 8)], [(24, 16)], []],
        keys=dict(VISION_TOKENS, tie_word_embeddings=True, vision_config=TOWER,
                  text_config=dict(BESIDE_TOWER, intermediate_size=20, tie_word_embeddings=True)),
    ),
    # A layer without experts; the folder has them transposed.
    "qwen3_vl_moe": dict(
        seed=2, least_margin=0.15,
        module="qwen3_vl_moe", config="Qwen3VLMoeConfig", model="Qwen3VLMoeForConditionalGeneration", lengths=[17, 11, 13],
        sizes=[[(16, 24), (32, 8)], [(24, 16)], []],
        keys=dict(VISION_TOKENS, tie_word_embeddings=False, vision_config=TOWER,
                  text_config=dict(BESIDE_TOWER, intermediate_size=40, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                                   mlp_only_layers=[0], tie_word_embeddings=False)),
    ),
}  # fmt: skip


@contextlib.contextmanager
def double_precision(module):
    """`.double()` leaves float32 in the modules of transformers: norms, softmax, rotary and interpolation tables. Within this context they are
    float64 as well. The model must be constructed within it, because tables are made then."""

    class Torch:
        float32 = float = torch.float64

        def __getattr__(self, name):
            return getattr(torch, name)

    names = [f"models.{module}.modeling_{module}", "modeling_rope_utils", "vision_utils"]
    modules = [importlib.import_module(f"transformers.{name}") for name in names]
    to_float = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    for each in modules:
        each.torch = Torch()
    try:
        yield
    finally:
        torch.Tensor.float = to_float
        for each in modules:
            each.torch = torch


def make_config(family):
    config = getattr(transformers, family["config"])(**family["keys"])
    config._experts_implementation = "eager"  # the others do not compute in double
    return config


def make_model(family, weights=None):
    model = getattr(transformers, family["model"])._from_config(make_config(family), attn_implementation="eager", dtype=torch.float32)
    return model if weights is None else load(model, weights)


def load(model, weights):
    model = model.to(next(iter(weights.values())).dtype).eval()
    unknown = model.load_state_dict(weights, strict=False).unexpected_keys
    assert not unknown, unknown
    model.tie_weights()
    return model


def random_weight(rng, name, shape):
    values = rng.standard_normal(tuple(shape))
    is_norm = len(shape) == 1 and name.endswith(".weight")
    return torch.tensor(1 + 0.1 * values if is_norm else 0.2 * values, dtype=torch.float32)


def as_published(tensors):
    """The tensors by the names in the file, where each matrix of an expert is one. Beside a vision tower, the experts are one, transposed."""
    published = {}
    for key, value in tensors.items():
        prefix, _, matrix = key.rpartition(".")
        if not prefix.endswith(".experts"):
            published[key] = value
            continue
        if "language_model" in prefix:
            published[key] = value.transpose(1, 2)
            continue
        names = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
        for expert, rows in enumerate(value):
            for name, part in zip(names, rows.chunk(len(names))):
                published[f"{prefix}.{expert}.{name}.weight"] = part
    return published


def routers(model):
    return [layer.mlp.gate for layer in getattr(model.model, "language_model", model.model).layers if hasattr(layer.mlp, "experts")]


@contextlib.contextmanager
def router_margins(model):
    """A list that gets, for every forward pass and router, by how much the last chosen expert of each row leads the next one."""
    margins = []

    def record(gate, _, result):
        best = result[0].detach().topk(gate.top_k + 1).values
        margins.append(best[:, -2] - best[:, -1])

    hooks = [gate.register_forward_hook(record) for gate in routers(model)]
    try:
        yield margins
    finally:
        for hook in hooks:
            hook.remove()


def with_clear_routes(rng, model, tokens, pictures, least):
    """Draws each token and picture again until the router of no layer hesitates at its rows. What precedes them does not change."""
    at = 0
    while at < len(tokens) and routers(model):
        shown = int((tokens[: at + 1] == IMAGE).sum())
        with router_margins(model) as margins, torch.no_grad():
            _, rows, _ = forward(model, tokens[: at + 1], pictures[:shown])
        if min(row[rows[at] :].min().item() for row in margins) > least:
            at += 1
            continue
        while tokens[at] in (VISION_START, VISION_END):
            at -= 1  # they stay, and what precedes them changes their rows
        if tokens[at] == IMAGE:
            pictures[shown - 1] = rng.integers(0, 256, pictures[shown - 1].shape, dtype=np.uint8)
        else:
            tokens[at] = int(rng.integers(0, VIDEO))
    return tokens, pictures


def keys_of_4_57(keys):
    """The config in the form that transformers 4.57 writes."""
    keys = {name: value for name, value in keys.items() if value is not None or name == "sliding_window"}
    keys = {name: keys_of_4_57(value) if name.endswith("_config") else value for name, value in keys.items()}
    rope = keys.pop("rope_parameters", {})
    if "rope_theta" in rope and not keys["model_type"].endswith("_vision"):  # the theta of vision towers is not in the file
        keys["rope_theta"] = rope.pop("rope_theta")
        keys["rope_scaling"] = rope if len(rope) > 1 else None
    if "num_local_experts" in keys:
        keys["num_experts"] = keys.pop("num_local_experts")
    if keys["model_type"] in ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe"):
        keys["torch_dtype"] = keys.pop("dtype")  # 4.57 writes `dtype`, most published folders have the older name
    keys["model_type"] = keys["model_type"].removesuffix("_vision")
    if "transformers_version" in keys:
        keys["transformers_version"] = "4.57.6"
    return dict(sorted(keys.items()))


def make_sample(rng, number, length, sizes):
    """Tokens, loss weights and pictures. Pictures follow each other after two tokens, each between its vision tokens, with one token between."""
    tokens = rng.integers(0, VIDEO, length)
    for p in range(len(sizes)):
        tokens[2 + 4 * p : 5 + 4 * p] = [VISION_START, IMAGE, VISION_END]
    weights = 0.5 * ((np.arange(length) + number) % 3)
    weights[(np.arange(length) == 0) | (tokens == IMAGE)] = 0
    pictures = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    return torch.tensor(tokens), torch.tensor(weights), pictures


def patches(picture):
    """Rows in the order of the merger's 2 x 2 blocks, columns in that of the weight: channel, time, y, x."""
    h, w, _ = picture.shape
    x = (picture / 127.5 - 1).reshape(h // BLOCK, MERGE, PATCH, w // BLOCK, MERGE, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    x = x.reshape(-1, 3, 1, PATCH, PATCH).repeat(TEMPORAL, axis=2)
    return torch.tensor(x.reshape(-1, 3 * TEMPORAL * PATCH * PATCH))


def forward(model, tokens, pictures):
    """Logits of a sample, the row of each of its tokens, and for pictures: positions, vision rows and deepstack rows."""
    counts = torch.ones(len(tokens), dtype=torch.long)
    counts[tokens == IMAGE] = torch.tensor([p.shape[0] * p.shape[1] // BLOCK**2 for p in pictures], dtype=torch.long)
    ids, rows = tokens.repeat_interleave(counts)[None], counts.cumsum(0) - counts
    if not hasattr(model.model, "visual"):
        return model(ids).logits[0], rows, {}
    kinds, inputs, extra = (ids == IMAGE).long(), {}, {}
    if pictures:
        grid = torch.tensor([[1, p.shape[0] // PATCH, p.shape[1] // PATCH] for p in pictures])
        pixels = torch.cat([patches(p) for p in pictures]).to(next(model.parameters()).dtype)
        inputs = dict(pixel_values=pixels, image_grid_thw=grid)
        vision = model.model.get_image_features(pixels, grid)
        for p, each in enumerate(vision.pooler_output):
            extra[f"vision.{{}}.{p}"] = each
        for i, layer in enumerate(vision.deepstack_features):
            for p, each in enumerate(layer):
                extra[f"deepstack.{{}}.{p}.{i}"] = each
        extra["positions.{}"] = model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grid)[0][:, 0]
    else:
        extra["positions.{}"] = torch.arange(ids.shape[1]).repeat(3, 1)
    return model(ids, mm_token_type_ids=kinds, use_cache=False, **inputs).logits[0], rows, extra


def compute(model, samples):
    """The loss, and what the reference holds of each sample."""
    total, weight_sum, results = 0.0, 0.0, {}
    for s, (tokens, weights, pictures) in enumerate(samples):
        logits, rows, extra = forward(model, tokens, pictures)
        results[f"logits.{s}"] = logits
        results.update({name.format(s): value for name, value in extra.items()})
        for j in range(1, len(tokens)):
            total = total - weights[j] * logits[rows[j] - 1].log_softmax(0)[tokens[j]]
            weight_sum += weights[j]
    return total / weight_sum, results


def write(name, family):
    folder, rng = HERE / name, np.random.default_rng(family.get("seed", sum(name.encode())))
    folder.mkdir(exist_ok=True)
    model = make_model(family)
    weights = {key: random_weight(rng, key, p.shape) for key, p in model.named_parameters()}
    load(model, weights).save_pretrained(folder)
    if any(key.startswith("model.language_model") and ".experts." in key for key in weights):
        # As published: transformers 5 transposes what it loads, and writes what it has loaded as it was.
        save_file({key: value.contiguous() for key, value in as_published(load_file(folder / "model.safetensors")).items()},
                  folder / "model.safetensors", {"format": "pt"})  # fmt: skip
    keys = json.loads((folder / "config.json").read_text())
    (folder / "config_4.57.json").write_text(json.dumps(keys_of_4_57(keys), indent=2) + "\n")

    samples = [make_sample(rng, s, length, sizes) for s, (length, sizes) in enumerate(zip(family["lengths"], family["sizes"]))]
    least = family.get("least_margin", LEAST_MARGIN)
    samples = [(tokens, token_weights, with_clear_routes(rng, model, tokens, pictures, least)[1]) for tokens, token_weights, pictures in samples]
    with double_precision(family["module"]):
        model = make_model(family, {key: value.double() for key, value in weights.items()})
        loss, results = compute(model, samples)
        loss.backward()
        check(family, model, samples, loss, rng)
        gradients = {f"gradient.{key}": grad for key, grad in as_published({key: p.grad.clone() for key, p in model.named_parameters()}).items()}
        reference = {"loss": loss, **results, **gradients, "losses": fine_tune(model, samples)}
    for s, (tokens, token_weights, pictures) in enumerate(samples):
        reference.update({f"tokens.{s}": tokens, f"weights.{s}": token_weights})
        reference.update({f"picture.{s}.{p}": torch.tensor(picture) for p, picture in enumerate(pictures)})
    reference = {key: value.detach().contiguous().clone() for key, value in reference.items()}
    save_file(reference, folder / "reference.safetensors")
    check_files(folder, family, samples)


def fine_tune(model, samples):
    """Losses of 20 steps on all samples, the first one before any update. Matrices decay, vectors do not."""
    groups = [dict(params=[p for p in model.parameters() if (p.dim() > 1) == matrices], weight_decay=0.1 * matrices) for matrices in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    with router_margins(model) as margins:
        for _ in range(20):
            optimizer.zero_grad()
            loss, _ = compute(model, samples)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if margins:
        least = min(rows.min().item() for rows in margins)
        print(f"  fine-tuning: the router's last chosen experts lead by at least {least:.1e}")
        assert least > 1e-4, "in fp32, other experts may be chosen"
    return torch.tensor(losses, dtype=torch.float64)


def check(family, model, samples, loss, rng):
    """Gradients against finite differences. Float32 anywhere in the model would show: its rounding is as large as the differences."""
    parameters, worst, step = dict(model.named_parameters()), 0.0, 1e-5
    assert all(buffer.dtype == torch.float64 for buffer in model.buffers())
    for key, parameter in parameters.items():
        assert parameter.grad.dtype == torch.float64 and parameter.grad.isfinite().all(), key
        at = int(rng.integers(parameter.numel())) if rng.integers(2) else int(parameter.grad.abs().argmax())
        index = np.unravel_index(at, parameter.shape)
        losses = []
        with torch.no_grad():
            old = parameter[index].item()
            for value in (old + step, old - step):
                parameter[index] = value
                losses.append(compute(model, samples)[0].item())
            parameter[index] = old
        worst = max(worst, abs((losses[0] - losses[1]) / (2 * step) - parameter.grad[index].item()))
    assert compute(model, samples)[0] == loss
    largest = {key: gradient.abs().max().item() for key, gradient in as_published({key: p.grad for key, p in parameters.items()}).items()}
    least = min(largest, key=largest.get)
    zero = sum((parameter.grad == 0).sum().item() for parameter in parameters.values())
    print(f"  loss {loss.item():.12f}; {len(parameters)} gradients, {zero} zeros, the smallest largest entry {largest[least]:.1e} of {least}")
    print(f"  finite differences differ by at most {worst:.1e}")
    assert worst < 1e-8 and largest[least] > 1e-4


def check_files(folder, family, samples):
    """The written files, loaded by transformers as a user loads them, in float32, with either config."""
    reference, weights = load_file(folder / "reference.safetensors"), load_file(folder / "model.safetensors")
    assert {f"gradient.{key}" for key in weights} == {key for key in reference if key.startswith("gradient.")}
    for config in ("config.json", "config_4.57.json"):
        with tempfile.TemporaryDirectory() as copy:
            copy = pathlib.Path(copy)
            (copy / "config.json").write_bytes((folder / config).read_bytes())
            (copy / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
            model = getattr(transformers, family["model"]).from_pretrained(copy, dtype=torch.float32).eval()
        with torch.no_grad():
            loss, results = compute(model, samples)
        error = max((value - reference[key]).abs().max().item() for key, value in results.items())
        print(f"  float32 with {config}: loss differs by {abs(loss.item() - reference['loss'].item()):.1e}, logits and rows by {error:.1e}")
        assert abs(loss - reference["loss"]) < 1e-6 and error < 2e-5


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for family_name in sys.argv[1:] or FAMILIES:
        print(family_name)
        write(family_name, FAMILIES[family_name])
