#!/usr/bin/env python3
"""Writes vlm.txt, vlm_forms.txt and distill.txt: loss and gradients of small jobs, by PyTorch's autograd in double precision.

The models are written independently of the program. Weights and samples follow the same formulas as in
tests/unit/model/model_fixture.hpp.
"""
import math
import pathlib
from dataclasses import dataclass

import torch

torch.set_default_dtype(torch.float64)
VOCABULARY, MARKER, EPS, HEADS, KEYS, DIM = 40, 39, 1e-6, 4, 2, 8
PATCH, MERGE, CHANNELS = 2, 2, 3


@dataclass(frozen=True)
class Form:
    """model::LayerForm."""
    layer_norm: bool = False
    gelu: bool = False
    bias: bool = False
    head_norm: bool = True


class Weights:
    """Parameters that are created at their first use. Their values are a function of section, name and index."""

    def __init__(self, section, trained=True):
        self.section, self.trained, self.all = section, trained, {}

    def __call__(self, name, *shape):
        if name not in self.all:
            phase = sum(f"{self.section}.{name}".encode())
            i = torch.arange(math.prod(shape), dtype=torch.float64)
            wave = torch.sin(0.37 * i + 0.0013 * i * i + phase)
            value = 1 + 0.1 * wave if name.endswith("norm.weight") else 0.2 * wave
            self.all[name] = value.reshape(shape).requires_grad_(self.trained)
        return self.all[name]


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def norm(w, name, x, form):
    width = x.shape[-1]
    if not form.layer_norm:
        return rms(x, w(f"{name}.weight", width))
    return torch.nn.functional.layer_norm(x, (width,), w(f"{name}.weight", width), w(f"{name}.bias", width), EPS)


def linear(w, name, x, outputs, bias):
    y = x @ w(f"{name}.weight", outputs, x.shape[-1]).T
    return y + w(f"{name}.bias", outputs) if bias else y


def rotate(x, angle):  # x [T, heads, DIM], angle [T, DIM / 2]
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def layers(w, x, angle, mlp, causal, form, count=2):
    rows, width = x.shape
    for n in range(count):
        p = lambda name, *shape: w(f"layers.{n}.{name}", *shape)
        qkv = linear(p, "attention.qkv", norm(p, "attention.norm", x, form), (HEADS + 2 * KEYS) * DIM, form.bias)
        q, k, v = (t.reshape(rows, -1, DIM) for t in qkv.split([HEADS * DIM, KEYS * DIM, KEYS * DIM], dim=1))
        if form.head_norm:
            q, k = rms(q, p("attention.q_norm.weight", DIM)), rms(k, p("attention.k_norm.weight", DIM))
        q, k = rotate(q, angle), rotate(k, angle)
        k, v = (t.repeat_interleave(HEADS // KEYS, dim=1) for t in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(DIM)
        if causal:
            scores = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -math.inf)
        attn_out = torch.einsum("hts,shd->thd", scores.softmax(-1), v).reshape(rows, HEADS * DIM)
        x = x + linear(p, "attention.output", attn_out, width, form.bias)
        normed = norm(p, "mlp.norm", x, form)
        if form.gelu:
            activated = torch.nn.functional.gelu(linear(p, "mlp.up", normed, mlp, form.bias), approximate="tanh")
        else:
            gate, up = linear(p, "mlp.gate_up", normed, 2 * mlp, form.bias).chunk(2, dim=1)
            activated = torch.nn.functional.silu(gate) * up
        x = x + linear(p, "mlp.down", activated, width, form.bias)
    return norm(w, "norm", x, form)


def picture(number, height, width):
    i = torch.arange(height * width * CHANNELS)
    return ((5 * i * i + 31 * i + 17 * number) % 256).reshape(height, width, CHANNELS).to(torch.float64) / 127.5 - 1


def vision(w, pixels, form, width=16, mlp=24, out=24, theta=100.0):
    block = PATCH * MERGE
    padded_height, padded_width = (-(-pixels.shape[i] // block) * block for i in (0, 1))
    pixels = pixels[torch.arange(padded_height).clamp(max=pixels.shape[0] - 1)]
    pixels = pixels[:, torch.arange(padded_width).clamp(max=pixels.shape[1] - 1)]
    patches, positions = [], []
    for by in range(0, padded_height, block):
        for bx in range(0, padded_width, block):
            for y in range(by, by + block, PATCH):
                for x in range(bx, bx + block, PATCH):
                    patches.append(pixels[y:y + PATCH, x:x + PATCH].reshape(-1))
                    positions.append((y // PATCH, x // PATCH))
    patches, positions = torch.stack(patches), torch.tensor(positions, dtype=torch.float64)
    frequency = theta ** (-torch.arange(DIM // 4) / (DIM // 4))
    angle = torch.cat([positions[:, :1] * frequency, positions[:, 1:] * frequency], dim=1)
    x = patches @ w("patch.weight", width, PATCH * PATCH * CHANNELS).T + w("patch.bias", width)
    x = layers(w, x, angle, mlp, causal=False, form=form)
    x = x.reshape(-1, MERGE * MERGE * width) @ w("merger.weight", out, MERGE * MERGE * width).T + w("merger.bias", out)
    x = torch.nn.functional.gelu(x, approximate="tanh")
    return x @ w("projector.weight", out, out).T + w("projector.bias", out)


def language(w, rows, width, mlp, form=Form(), theta=10000.0):
    angle = torch.arange(rows.shape[0])[:, None] * theta ** (-2 * torch.arange(DIM // 2) / DIM)
    return layers(w, rows, angle, mlp, causal=True, form=form)


def weight(sample, token):
    return 0.5 * ((token + sample) % 3)


def write(path, loss, *sections):
    with open(path, "w", encoding="ascii") as out:
        out.write(f"loss {loss.item():.12g}\n")
        for w in sections:
            for name, value in w.all.items():
                out.write(f"{w.section}.{name} {value.numel()}\n")
                out.write("\n".join(f"{g:.9g}" for g in value.grad.flatten().tolist()) + "\n")


def vlm(path, vision_form=Form(), language_form=Form()):
    samples = [([3, MARKER, 5, 7, MARKER, 11, 12, 13], [(5, 7), (8, 4)]),
               ([MARKER, 9, 2, 30, 31], [(3, 9)]),
               ([1, 2, 8, 4, 2, 17], [])]
    vision_weights, language_weights = Weights("vision"), Weights("language")
    table = language_weights("embedding.weight", VOCABULARY, 24)
    total, weights, number = 0.0, 0.0, 0
    for s, (tokens, sizes) in enumerate(samples):
        rows, targets, shown = [], [], iter(sizes)
        for j, token in enumerate(tokens):
            at = sum(len(r) for r in rows)
            if token == MARKER:
                rows.append(vision(vision_weights, picture(number, *next(shown)), vision_form))
                number += 1
                continue
            if j > 0:
                targets.append((at - 1, token, weight(s, j)))
            rows.append(table[token][None])
        logits = language(language_weights, torch.cat(rows), 24, 32, language_form) @ table.T
        for at, token, each in targets:
            total = total - each * logits[at].log_softmax(0)[token]
            weights += each
    loss = total / weights
    loss.backward()
    write(path, loss, vision_weights, language_weights)


def distill(path, alpha=0.3, temperature=2.0):
    samples = [[3, 14, 15, 9, 2, 6], [5, 35, 8, 9, 7, 9, 3, 2, 38]]
    teacher, student = Weights("teacher", False), Weights("student")
    frozen = Weights("student", False)
    total, weights = 0.0, 0.0
    for s, tokens in enumerate(samples):
        states = language(teacher, teacher("embedding.weight", VOCABULARY, 24)[tokens], 24, 32)
        normed = language(student, student("embedding.weight", VOCABULARY, 16)[tokens], 16, 24)
        teacher_log_probs = (states @ frozen("teacher_head.weight", VOCABULARY, 24).T / temperature).log_softmax(1)
        logits = normed @ student("head.weight", VOCABULARY, 16).T
        student_log_probs = (logits / temperature).log_softmax(1)
        for j in range(1, len(tokens)):
            hard = -logits[j - 1].log_softmax(0)[tokens[j]]
            kl = (teacher_log_probs[j - 1].exp() * (teacher_log_probs[j - 1] - student_log_probs[j - 1])).sum()
            total = total + weight(s, j) * ((1 - alpha) * hard + alpha * temperature ** 2 * kl)
            weights += weight(s, j)
    loss = total / weights
    loss.backward()
    write(path, loss, student)


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    vlm(here / "vlm.txt")
    vlm(here / "vlm_forms.txt", Form(layer_norm=True, gelu=True, bias=True, head_norm=False), Form(head_norm=False))
    distill(here / "distill.txt")
