#!/usr/bin/env python3
"""Makes a small model folder in the form of the Hugging Face hub, with random weights: what Maestro and transformers load, to try the way
from a folder to a fine-tuned one without a download. Its tokenizer is learned from the licences that every Debian has.

  scripts/data/make_model.py qwen3 models/small"""

import argparse
import json
import sys
from pathlib import Path

import apt_packages  # noqa: F401
import byte_bpe
import licences
import numpy as np

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
HEADERS = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
                "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")  # fmt: skip
QWEN_OTHERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA_SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                 "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
                 "<|eot_id|>", "<|python_tag|>")  # fmt: skip
PADDING = 64  # the vocabulary is a multiple of it, as in published models


class Tokens:
    """The tokenizer of a family, and the ids of its special tokens."""

    def __init__(self, family, merges):
        self.llama = family == "llama"
        text = "\n".join(" ".join(words) for words in licences.blocks(False)[:32])
        merges = byte_bpe.learn_merges(text, merges)
        self.special = LLAMA_SPECIAL if self.llama else QWEN_SPECIAL
        others = () if self.llama else QWEN_OTHERS
        begin, split = (LLAMA_SPECIAL[0], byte_bpe.LLAMA_SPLIT) if self.llama else (None, byte_bpe.QWEN_SPLIT)
        self.json = byte_bpe.tokenizer_json(merges, self.special, others, split=split, begin=begin)
        self.ids = {token["content"]: token["id"] for token in self.json["added_tokens"]}
        self.end, self.pad = ("<|eot_id|>", "<|finetune_right_pad_id|>") if self.llama else ("<|im_end|>", "<|endoftext|>")
        self.vocabulary = -(-(max(self.ids.values()) + 1) // PADDING) * PADDING

    def config(self):
        decoder = {str(token["id"]): {name: token[name] for name in token if name != "id"} for token in self.json["added_tokens"]}
        return {"added_tokens_decoder": decoder, "bos_token": LLAMA_SPECIAL[0] if self.llama else None, "clean_up_tokenization_spaces": False,
                "eos_token": self.end, "model_max_length": 4096, "pad_token": self.pad,
                "tokenizer_class": "PreTrainedTokenizerFast" if self.llama else "Qwen2Tokenizer"}  # fmt: skip


def text_config(options, tokens):
    """The keys of a language model, as transformers 4.57 writes them."""
    llama = options.family == "llama"
    config = {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": options.head_dim, "hidden_act": "silu", "hidden_size": options.width,
        "initializer_range": 0.02, "intermediate_size": options.mlp, "max_position_embeddings": 4096, "num_attention_heads": options.heads,
        "num_hidden_layers": options.layers, "num_key_value_heads": options.kv_heads, "rms_norm_eps": 1e-5 if llama else 1e-6,
        "rope_scaling": None, "rope_theta": 5e5 if llama else 1e6, "tie_word_embeddings": options.tied, "use_cache": True,
        "vocab_size": tokens.vocabulary,
    }  # fmt: skip
    if options.family == "qwen3_vl":
        j = options.head_dim // 2
        sections = [j - 2 * (j // 3), j // 3, j // 3]  # frequencies of time, height and width
        return {**config, "dtype": "bfloat16", "model_type": "qwen3_vl_text", "rope_theta": 5e6,
                "rope_scaling": {"mrope_interleaved": True, "mrope_section": sections, "rope_type": "default"}}  # fmt: skip
    specific = {"mlp_bias": False, "pretraining_tp": 1} if llama else {"max_window_layers": options.layers, "sliding_window": None, "use_sliding_window": False}
    if options.family == "qwen3_moe":
        specific |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": options.expert_mlp, "norm_topk_prob": True,
                     "num_experts": options.experts, "num_experts_per_tok": options.experts_per_token, "output_router_logits": False,
                     "router_aux_loss_coef": 0.001}  # fmt: skip
    return {**config, **specific, "model_type": options.family, "torch_dtype": "bfloat16"}


def vision_config(options):
    return {
        "deepstack_visual_indexes": options.deepstack, "depth": options.vision_layers, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": options.vision_width, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": options.vision_mlp,
        "model_type": "qwen3_vl", "num_heads": options.vision_heads, "num_position_embeddings": 64, "out_hidden_size": options.width,
        "patch_size": options.patch, "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip


def model_config(options, tokens):
    ids = {"bos_token_id": tokens.ids[LLAMA_SPECIAL[0] if tokens.llama else tokens.pad], "eos_token_id": tokens.ids[tokens.end]}
    common = {"tie_word_embeddings": options.tied, "transformers_version": "4.57.6"}
    if options.family != "qwen3_vl":
        name = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}[options.family]
        return {"architectures": [name], **ids, **text_config(options, tokens), **common}
    named = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>",
             "vision_end_token_id": "<|vision_end|>"}  # fmt: skip
    return {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", **{key: tokens.ids[token] for key, token in named.items()},
            "text_config": {**text_config(options, tokens), **ids}, "vision_config": vision_config(options), **common}  # fmt: skip


def language_shapes(options, vocabulary, prefix):
    """Yields the names and shapes of a language model's tensors."""
    c, q, kv, d = options.width, options.heads * options.head_dim, options.kv_heads * options.head_dim, options.head_dim
    yield f"{prefix}embed_tokens.weight", (vocabulary, c)
    for n in range(options.layers):
        layer = f"{prefix}layers.{n}."
        yield f"{layer}input_layernorm.weight", (c,)
        for name, shape in (("q_proj", (q, c)), ("k_proj", (kv, c)), ("v_proj", (kv, c)), ("o_proj", (c, q))):
            yield f"{layer}self_attn.{name}.weight", shape
        if options.family != "llama":
            yield f"{layer}self_attn.q_norm.weight", (d,)
            yield f"{layer}self_attn.k_norm.weight", (d,)
        yield f"{layer}post_attention_layernorm.weight", (c,)
        moe = options.family == "qwen3_moe"
        if moe:
            yield f"{layer}mlp.gate.weight", (options.experts, c)
        hidden = options.expert_mlp if moe else options.mlp
        for mlp in [f"mlp.experts.{e}" for e in range(options.experts)] if moe else ["mlp"]:
            for name, shape in (("gate_proj", (hidden, c)), ("up_proj", (hidden, c)), ("down_proj", (c, hidden))):
                yield f"{layer}{mlp}.{name}.weight", shape
    yield f"{prefix}norm.weight", (c,)
    if not options.tied:
        yield "lm_head.weight", (vocabulary, c)


def vision_shapes(config):
    """Yields the names and shapes of a vision tower's tensors."""

    def linear(name, rows, columns):
        return ((f"{name}.weight", (rows, columns)), (f"{name}.bias", (rows,)))

    def norm(name, width):
        return ((f"{name}.weight", (width,)), (f"{name}.bias", (width,)))

    def merger(name, norm_width):
        return (*norm(f"{name}.norm", norm_width), *linear(f"{name}.linear_fc1", 4 * c, 4 * c), *linear(f"{name}.linear_fc2", config["out_hidden_size"], 4 * c))

    c, m, patch, visual = config["hidden_size"], config["intermediate_size"], config["patch_size"], "model.visual."
    yield f"{visual}patch_embed.proj.weight", (c, 3, 2, patch, patch)
    yield f"{visual}patch_embed.proj.bias", (c,)
    yield f"{visual}pos_embed.weight", (config["num_position_embeddings"], c)
    for n in range(config["depth"]):
        block = f"{visual}blocks.{n}."
        yield from (*norm(f"{block}norm1", c), *norm(f"{block}norm2", c), *linear(f"{block}attn.qkv", 3 * c, c), *linear(f"{block}attn.proj", c, c),
                    *linear(f"{block}mlp.linear_fc1", m, c), *linear(f"{block}mlp.linear_fc2", c, m))  # fmt: skip
    yield from merger(f"{visual}merger", c)
    for i in range(len(config["deepstack_visual_indexes"])):
        yield from merger(f"{visual}deepstack_merger_list.{i}", 4 * c)


def bf16(values):
    """Returns float32 values rounded to bf16, to nearest, halves to even; as uint16."""
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path, shapes, seed):
    """Matrices are normally distributed with deviation 0.02, the weights of norms 1 and biases 0, as transformers initializes them."""
    random, shapes = np.random.default_rng(seed), dict(shapes)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at := at + 2 * int(np.prod(shape))]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            values = 0.02 * random.standard_normal(shape, "f4") if len(shape) > 1 else np.full(shape, float(name.endswith(".weight")), "f4")
            file.write(bf16(values).tobytes())
    return sum(int(np.prod(shape)) for shape in shapes.values())


def processor_configs(options):
    """The contents of preprocessor_config.json and video_preprocessor_config.json."""
    side = 2 * options.patch
    common = {"merge_size": 2, "patch_size": options.patch, "temporal_patch_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
              "size": {"longest_edge": 64 * side**2, "shortest_edge": 4 * side**2}, "processor_class": "Qwen3VLProcessor"}  # fmt: skip
    return {**common, "image_processor_type": "Qwen2VLImageProcessorFast"}, {**common, "video_processor_type": "Qwen3VLVideoProcessor"}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=("llama", "qwen3", "qwen3_moe", "qwen3_vl"))
    parser.add_argument("folder", type=Path, help="folder to write, for example models/small")
    for name, default, text in (("layers", 4, "layers of the language model"), ("width", 128, "its width"), ("heads", 4, "heads"),
                                ("kv-heads", 2, "heads of keys and values"), ("head-dim", 32, "width of a head"), ("mlp", 384, "hidden width of the MLP"),
                                ("experts", 8, "qwen3_moe: experts of a layer"), ("experts-per-token", 2, "those that a token is sent to"),
                                ("expert-mlp", 128, "hidden width of an expert"),
                                ("vision-layers", 3, "qwen3_vl: layers of the vision tower"), ("vision-width", 96, "its width"),
                                ("vision-heads", 3, "its heads"), ("vision-mlp", 384, "hidden width of its MLP"), ("patch", 8, "pixels, the side of a patch"),
                                ("merges", 256, "tokens that are learned, beside 256 bytes")):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    parser.add_argument("--untied", dest="tied", action="store_false", help="an output head beside the embedding")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights (default: 1)")
    options = parser.parse_args(arguments)
    numbers = {name: value for name, value in vars(options).items() if isinstance(value, int) and name not in ("seed", "merges")}
    if any(value < 1 for name, value in numbers.items() if name != "tied") or options.merges < 0:
        parser.error("sizes are at least 1")
    if options.heads % options.kv_heads or options.head_dim % 2 or options.vision_width % options.vision_heads:
        parser.error("--kv-heads must divide --heads, --head-dim must be even, and --vision-heads must divide --vision-width")
    if options.experts_per_token > options.experts:
        parser.error("--experts-per-token is at most --experts")
    if options.vision_width // options.vision_heads % 4:
        parser.error("--vision-width / --vision-heads must be a multiple of 4")
    options.deepstack = list(range(min(options.vision_layers - 1, options.layers, 2)))
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    folder = options.folder
    if (folder / "config.json").exists():
        sys.exit(f"{folder}: a model is there already")
    folder.mkdir(parents=True, exist_ok=True)
    tokens = Tokens(options.family, options.merges)
    config = model_config(options, tokens)
    vl = options.family == "qwen3_vl"
    shapes = [*language_shapes(options, tokens.vocabulary, "model.language_model." if vl else "model."),
              *(vision_shapes(config["vision_config"]) if vl else ())]  # fmt: skip
    count = write_safetensors(folder / "model.safetensors", shapes, options.seed)
    write_json(folder / "tokenizer.json", tokens.json)
    write_json(folder / "tokenizer_config.json", tokens.config())
    (folder / "chat_template.jinja").write_text(HEADERS if tokens.llama else CHATML)
    if vl:
        for name, contents in zip(("preprocessor_config.json", "video_preprocessor_config.json"), processor_configs(options)):
            write_json(folder / name, contents)
    ends = [tokens.ids[tokens.end]] + ([] if tokens.llama else [tokens.ids[tokens.pad]])
    write_json(folder / "generation_config.json", {"bos_token_id": tokens.ids[LLAMA_SPECIAL[0] if tokens.llama else tokens.pad],
                                                   "do_sample": False, "eos_token_id": ends, "pad_token_id": tokens.ids[tokens.pad],
                                                   "transformers_version": "4.57.6"})  # fmt: skip
    write_json(folder / "config.json", config)
    print(f"{folder}: {options.family} of {options.layers} layers and width {options.width}, {count:,} random weights, vocabulary {tokens.vocabulary}")


if __name__ == "__main__":
    main()
