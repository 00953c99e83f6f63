#!/usr/bin/env python3
"""Writes LoRA adapters of the folders that make_families.py has made, with the loss, gradients and losses of fine-tuning by transformers and PEFT in
double precision.

    pip install torch transformers peft safetensors numpy
    python3 make_lora.py [FAMILY ...]

Tests read the files and need none of these packages. FAMILY_lora holds

adapter_config.json, adapter_model.safetensors
                       as PEFT writes them, F32. A and B are random, with a fixed seed: with B = 0, as PEFT begins, A would have no gradient
reference.safetensors  the samples are those of FAMILY/reference.safetensors:
    loss               F64 []      of the model with the adapter, as there
    gradient.NAME      F64         gradient of `loss`, for every NAME of adapter_model.safetensors
    losses             F64 [20]    losses of fine-tuning the adapter with torch's AdamW, as there; A and B decay
"""

import json
import sys

import numpy as np
import peft
import torch
import transformers
from make_families import FAMILIES, HERE, as_published, check, compute, double_precision, fine_tune, load_file, make_model, save_file

ADAPTERS = {
    "llama": dict(r=4, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "mistral": dict(r=2, lora_alpha=5, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "qwen2": dict(r=3, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "qwen3": dict(r=3, lora_alpha=4, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]),
    "qwen3_moe": dict(r=2, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),  # experts have none
    "qwen3_vl": dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
                                                        "attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2"]),
    "qwen3_vl_moe": dict(r=2, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "attn.qkv", "attn.proj", "mlp.linear_fc1",
                                                            "mlp.linear_fc2"]),
}


def read_weights(folder, family):
    """The weights of the folder, by the names of the model's parameters: all experts of a layer are one."""
    published, weights = load_file(folder / "model.safetensors"), {}
    for name, parameter in make_model(family).named_parameters():
        parts = as_published({name: parameter})
        value = torch.cat([published.pop(part) for part in parts])
        is_transposed = len(parts) == 1 and parts[next(iter(parts))].shape != parameter.shape
        weights[name] = (value.transpose(1, 2) if is_transposed else value).reshape(parameter.shape)
    assert not published, published.keys()
    return weights


def read_samples(folder):
    reference, samples = load_file(folder / "reference.safetensors"), []
    while f"tokens.{len(samples)}" in reference:
        s = len(samples)
        pictures = [reference[f"picture.{s}.{p}"].numpy() for p in range(9) if f"picture.{s}.{p}" in reference]
        samples.append((reference[f"tokens.{s}"], reference[f"weights.{s}"], pictures))
    return samples


def adapted(family, weights, adapter):
    """The model of these weights with an adapter of random values, of the type of the weights."""
    model = make_model(family, weights).requires_grad_(False)
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **adapter)
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    rng = np.random.default_rng(adapter["r"])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            values = rng.standard_normal(tuple(parameter.shape)) * (0.2 if "lora_A" in name else 0.1)
            parameter.data = torch.tensor(values, dtype=torch.float32).to(parameter.dtype)
    return model.eval()


class Trained(torch.nn.Module):
    """The model with its trained parameters alone, by their names in adapter_model.safetensors."""

    def __init__(self, model):
        super().__init__()
        self.whole, self.model = [model], model.base_model.model.model

    def forward(self, ids, **inputs):
        return self.whole[0](ids, **inputs)

    def named_parameters(self, *_, **__):
        for name, parameter in self.whole[0].named_parameters():
            if parameter.requires_grad:
                yield name.replace(".default", ""), parameter

    def parameters(self, *_, **__):
        return (parameter for _, parameter in self.named_parameters())


def write(name, adapter):
    source, folder, family = HERE / name, HERE / f"{name}_lora", FAMILIES[name]
    weights, samples = read_weights(source, family), read_samples(source)
    adapted(family, weights, adapter).save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = adapter["target_modules"]  # of a set, whose order changes from run to run
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    with double_precision(family["module"]):
        model = Trained(adapted(family, {key: value.double() for key, value in weights.items()}, adapter))
        loss, _ = compute(model, samples)
        loss.backward()
        check(family, model, samples, loss, np.random.default_rng(1))
        gradients = {f"gradient.{key}": p.grad.clone() for key, p in model.named_parameters()}
        assert set(load_file(folder / "adapter_model.safetensors")) == {key[len("gradient."):] for key in gradients}
        reference = {"loss": loss.detach(), **gradients, "losses": fine_tune(model, samples)}
    save_file({key: value.contiguous().clone() for key, value in reference.items()}, folder / "reference.safetensors")
    print(f"  losses from {reference['losses'][0]:.6f} to {reference['losses'][-1]:.6f}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for family_name in sys.argv[1:] or ADAPTERS:
        print(family_name)
        write(family_name, ADAPTERS[family_name])
