#!/usr/bin/env python3
"""Writes vlm.txt and distill.txt: loss and gradients of two small jobs, by PyTorch's autograd in double precision.

The models are written independently of the program. Weights and samples follow the same formulas as in
tests/unit/model/model_fixture.hpp.
"""
import math
import pathlib

import torch

torch.set_default_dtype(torch.float64)
VOCABULARY, MARKER, EPS, HEADS, KEYS, DIM = 40, 39, 1e-6, 4, 2, 8
PATCH, MERGE, CHANNELS = 2, 2, 3


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


def rotate(x, angle):  # x [T, heads, DIM], angle [T, DIM / 2]
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def layers(w, x, angle, mlp, causal, count=2):
    rows, width = x.shape
    for n in range(count):
        p = lambda name, *shape: w(f"layers.{n}.{name}", *shape)
        qkv = rms(x, p("attention.norm.weight", width)) @ p("attention.qkv.weight", (HEADS + 2 * KEYS) * DIM, width).T
        q, k, v = (t.reshape(rows, -1, DIM) for t in qkv.split([HEADS * DIM, KEYS * DIM, KEYS * DIM], dim=1))
        q = rotate(rms(q, p("attention.q_norm.weight", DIM)), angle)
        k = rotate(rms(k, p("attention.k_norm.weight", DIM)), angle)
        k, v = (t.repeat_interleave(HEADS // KEYS, dim=1) for t in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(DIM)
        if causal:
            scores = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -math.inf)
        attn_out = torch.einsum("hts,shd->thd", scores.softmax(-1), v).reshape(rows, HEADS * DIM)
        x = x + attn_out @ p("attention.output.weight", width, HEADS * DIM).T
        gate, up = (rms(x, p("mlp.norm.weight", width)) @ p("mlp.gate_up.weight", 2 * mlp, width).T).chunk(2, dim=1)
        x = x + (torch.nn.functional.silu(gate) * up) @ p("mlp.down.weight", width, mlp).T
    return rms(x, w("norm.weight", width))


def picture(number, height, width):
    i = torch.arange(height * width * CHANNELS)
    return ((5 * i * i + 31 * i + 17 * number) % 256).reshape(height, width, CHANNELS).to(torch.float64) / 127.5 - 1


def vision(w, pixels, width=16, mlp=24, out=24, theta=100.0):
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
    x = layers(w, x, angle, mlp, causal=False)
    x = x.reshape(-1, MERGE * MERGE * width) @ w("merger.weight", out, MERGE * MERGE * width).T + w("merger.bias", out)
    x = torch.nn.functional.gelu(x, approximate="tanh")
    return x @ w("projector.weight", out, out).T + w("projector.bias", out)


def language(w, rows, width, mlp, theta=10000.0):
    angle = torch.arange(rows.shape[0])[:, None] * theta ** (-2 * torch.arange(DIM // 2) / DIM)
    return layers(w, rows, angle, mlp, causal=True)


def weight(sample, token):
    return 0.5 * ((token + sample) % 3)


def write(path, loss, *sections):
    with open(path, "w", encoding="ascii") as out:
        out.write(f"loss {loss.item():.12g}\n")
        for w in sections:
            for name, value in w.all.items():
                out.write(f"{w.section}.{name} {value.numel()}\n")
                out.write("\n".join(f"{g:.9g}" for g in value.grad.flatten().tolist()) + "\n")


def vlm(path):
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
                rows.append(vision(vision_weights, picture(number, *next(shown))))
                number += 1
                continue
            if j > 0:
                targets.append((at - 1, token, weight(s, j)))
            rows.append(table[token][None])
        logits = language(language_weights, torch.cat(rows), 24, 32) @ table.T
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
    distill(here / "distill.txt")
