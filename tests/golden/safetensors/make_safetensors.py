#!/usr/bin/env python3
"""Writes the files of this folder with the reference implementation: pip install safetensors huggingface_hub numpy ml_dtypes.

types.safetensors      element types, written by the package safetensors
unaligned.safetensors  the same format in another order, at odd offsets, as the package accepts it
values.txt             what both hold: file, name, type, shape and, of weights, each value as the bits of an f32
single/, sharded/      one model in one file and in five with their index, as transformers writes them. tests/unit/safetensors computes the same
                       weights (`weight` here) and writes the same files
headers.txt            headers, each with the number of bytes that follow it, and whether the reference accepts it. `stricter`: the reference
                       accepts it, and Maestro refuses it
"""

import json
import pathlib

import ml_dtypes
import numpy as np
import safetensors
from huggingface_hub.serialization._base import split_state_dict_into_shards_factory

HERE = pathlib.Path(__file__).resolve().parent
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64", "int64": "I64", "bool": "BOOL", "uint8": "U8", "int16": "I16",
         "float8_e4m3fn": "F8_E4M3", "complex64": "C64"}  # fmt: skip
MODEL = [
    ("model.embed_tokens.weight", "bfloat16", (10, 8)),
    ("model.layers.0.linear_attn.A_log", "float32", (4,)),
    ("model.layers.0.linear_attn.conv1d.weight", "bfloat16", (6, 1, 4)),
    ("model.layers.0.self_attn.q_proj.weight", "bfloat16", (8, 8)),
    ("model.layers.0.self_attn.k_proj.weight", "float16", (3, 8)),
    ("model.layers.0.mlp.gate_proj.weight", "bfloat16", (16, 16)),
    ("model.layers.0.scale", "float32", ()),
    ("model.layers.0.none", "bfloat16", (0, 8)),
    ("model.layers.1.self_attn.q_proj.weight", "bfloat16", (8, 8)),
    ("model.layers.1.mlp.up_proj.weight", "float16", (20, 7)),
    ("lm_head.weight", "bfloat16", (10, 8)),
]
MAX_SHARD = 400  # bytes


def weight(number, count):
    """The elements of tensor `number` of MODEL in f32: they use all bits, so that each is rounded in bf16 and f16."""
    i = np.arange(count, dtype=np.uint64) + 1
    return (((i * 2654435761 + 97 * number) % 2**32) / 2.0**31 - 1).astype(np.float32)


def save(path, arrays, metadata=None):
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    specs = {name: safetensors.TensorSpec(dtype=str(array.dtype), shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
             for name, array in arrays.items()}  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(safetensors.serialize(specs, metadata))


def escape(data, least=0x20):
    """Bytes as text; all but those from `least` to '~', and the backslash, as \\xNN."""
    return "".join(chr(byte) if least <= byte < 0x7F and byte != ord("\\") else f"\\x{byte:02x}" for byte in data)


def line(file, name, array):
    values = array.astype(np.float32).view(np.uint32).flatten() if str(array.dtype) in ("float32", "bfloat16", "float16", "float64") else []
    return " ".join([file, escape(name.encode(), 0x21), NAMES[str(array.dtype)], ",".join(map(str, array.shape)) or "-", *(f"{value:08x}" for value in values)])


def types():
    random = np.random.default_rng(1)
    normal = lambda *shape: random.standard_normal(shape)
    arrays = {
        "z.matrix": normal(3, 5).astype(ml_dtypes.bfloat16),
        "f16": np.concatenate([normal(5), [0, -0.0, 6e-8, 65504, 6.1e-5, -3e-5]]).astype(np.float16),
        "f32.cube": normal(2, 3, 2).astype(np.float32),
        "f32.denormal": np.array([1e-45, -1e-40, 3.4e38, -0.0], dtype=np.float32),
        "f64": np.array([1 / 3, -1e-300, 3e38, 2**-149, 1 + 2**-24 + 2**-40]),
        "scalar": np.array(-2.75, dtype=ml_dtypes.bfloat16),
        "empty": np.zeros((0, 4), dtype=np.float32),
        "größe \"1\"\n": np.array([1.5, 2.5], dtype=np.float16),
        "ids": np.array([1, -2], dtype=np.int64),
        "mask": np.array([True, False, True]),
        "pixels": np.arange(5, dtype=np.uint8),
        "sound": np.arange(3, dtype=np.int16),
        "quantized": np.array([1, 2, 3], dtype=ml_dtypes.float8_e4m3fn),
        "complex": np.array([1 + 2j], dtype=np.complex64),
    }
    save(HERE / "types.safetensors", arrays, {"format": "pt", "note": "größe"})
    header, data = {"__metadata__": {}}, b""
    order = ["pixels", "f64", "empty", "f32.cube", "mask", "z.matrix", "scalar", "f16"]
    for name in order:
        array = arrays[name]
        header[name] = {"shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes], "dtype": NAMES[str(array.dtype)]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * ((4 - len(text)) % 8)  # 8 + text ends at an odd multiple of 4: F64 lies at an odd address
    (HERE / "unaligned.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert len(safetensors.deserialize((HERE / "unaligned.safetensors").read_bytes())) == len(order)
    lines = [line("types", name, array) for name, array in sorted(arrays.items())]
    lines += [line("unaligned", name, arrays[name]) for name in sorted(order)]
    (HERE / "values.txt").write_text("\n".join(lines) + "\n")


def model():
    arrays = {}
    for number, (name, dtype, shape) in enumerate(MODEL):
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        arrays[name] = weight(number, int(np.prod(shape))).astype(kind).reshape(shape)
    save(HERE / "single/model.safetensors", arrays, {"format": "pt"})
    split = split_state_dict_into_shards_factory(arrays, get_storage_size=lambda array: array.nbytes, max_shard_size=MAX_SHARD,
                                                   filename_pattern="model{suffix}.safetensors")  # fmt: skip
    assert len(split.filename_to_tensors) == 5, split.filename_to_tensors
    for file, names in split.filename_to_tensors.items():
        save(HERE / "sharded" / file, {name: arrays[name] for name in names}, {"format": "pt"})
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    (HERE / "sharded/model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def tensor(dtype="F32", shape=(2,), offsets=(0, 8), **other):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **other}


def text(**tensors):
    return json.dumps(tensors).encode()


A = tensor()
HEADERS = [  # verdict, bytes behind the header, header
    ("accept", 8, text(a=A)),
    ("accept", 8, text(a=A) + b" \n\t\r  "),
    ("accept", 0, b"{}"),
    ("accept", 0, text(__metadata__={})),
    ("accept", 8, text(__metadata__={"format": "pt", "b": ""}, a=A)),
    ("accept", 8, text(__metadata__=None, a=A)),
    ("accept", 4, text(a=tensor(shape=(), offsets=(0, 4)))),
    ("accept", 0, text(a=tensor(shape=(0,), offsets=(0, 0)))),
    ("accept", 8, text(b=A, a=tensor(shape=(3, 0), offsets=(8, 8)), c=tensor(shape=(0,), offsets=(0, 0)))),
    ("accept", 24, text(b=tensor(offsets=(16, 24)), a=tensor(offsets=(0, 8)), c=tensor(offsets=(8, 16)))),
    ("accept", 8, text(a=tensor(order="C", strides=[1, [2]], nothing=None, more={"x": {}}))),
    ("accept", 1, text(a=tensor("F4", (2,), (0, 1)))),
    ("accept", 3, text(a=tensor("F6_E2M3", (4,), (0, 3)))),
    ("accept", 9, text(a=A, b=tensor("BOOL", (1,), (8, 9)))),
    ("accept", 8, text(**{"": A})),
    ("accept", 8, b'{"\\u0061\\ud83d\\ude00":' + json.dumps(A).encode() + b"}"),
    ("accept", 8, '{"größe":'.encode() + json.dumps(A).encode() + b"}"),
    ("stricter", 8, b" " + text(a=A)),
    ("stricter", 8, b'{"a":' + json.dumps(A).encode() + b',"a":' + json.dumps(A).encode() + b"}"),
    ("stricter", 8, b'{"__metadata__":{"x":"1","x":"2"},"a":' + json.dumps(A).encode() + b"}"),
    ("stricter", 8, text(a=tensor(deep=[[[]]]))),
    ("stricter", 8, text(a=["F32", [2], [0, 8]])),
    ("stricter", 4, text(a=tensor(shape=(1,) * 65, offsets=(0, 4)))),
    ("stricter", 0, text(a=tensor(shape=(0, 2**40, 2**40), offsets=(0, 0)))),
    ("refuse", 8, b""),
    ("refuse", 8, b"{"),
    ("refuse", 8, b"[]"),
    ("refuse", 8, b"null"),
    ("refuse", 8, text(a=A)[:-1]),
    ("refuse", 8, text(a=A) + b"}"),
    ("refuse", 8, text(a=A) + b"x"),
    ("refuse", 8, text(a=A) + b"\0"),
    ("refuse", 8, text(a=A) + b"\0{}"),
    ("refuse", 8, text(a=A)[:-1] + b",}"),
    ("refuse", 8, b"\xef\xbb\xbf" + text(a=A)),
    ("refuse", 8, b"{/**/" + text(a=A)[1:]),
    ("refuse", 8, text(xx=A).replace(b"xx", b"\xc3\x28")),
    ("refuse", 8, text(xx=A).replace(b"xx", b"\xed\xa0\x80")),
    ("refuse", 8, text(xx=A).replace(b"xx", b"\\ud800")),
    ("refuse", 8, text(xx=A).replace(b"xx", b"x\nx")),
    ("refuse", 8, text(a=tensor("F33"))),
    ("refuse", 8, text(a=tensor("f32"))),
    ("refuse", 8, text(a=tensor(1))),
    ("refuse", 8, text(a=tensor(["F32"]))),
    ("refuse", 8, text(a=tensor(shape=(-2,)))),
    ("refuse", 8, text(a=tensor(shape=(2.0,)))),
    ("refuse", 8, text(a=tensor(shape=("2",)))),
    ("refuse", 8, text(a=tensor(shape=([2],)))),
    ("refuse", 8, text(a=tensor(shape=(None,)))),
    ("refuse", 8, text(a=tensor(shape=(2**64 + 2,)))),
    ("refuse", 8, text(a=tensor(shape=(2**32, 2**32)))),
    ("refuse", 8, text(a=tensor(shape=(2**32, 2**31)))),
    ("refuse", 8, text(a=tensor(shape=(2**62,)))),
    ("refuse", 0, text(a=tensor(shape=(-0.0, 2), offsets=(0, 0)))),
    ("refuse", 0, text(a=tensor(shape=(0,), offsets=(0, 0))).replace(b"[0]", b"[-0]")),
    ("refuse", 8, text(a=tensor()).replace(b"[2]", b"2")),
    ("refuse", 8, text(a=tensor()).replace(b"[2]", b"{}")),
    ("refuse", 8, text(a=tensor()).replace(b"[2]", b"02")),
    ("refuse", 8, text(a=tensor(offsets=(0, 8, 8)))),
    ("refuse", 8, text(a=tensor(offsets=(0,)))),
    ("refuse", 8, text(a=tensor(offsets=()))),
    ("refuse", 8, text(a=tensor(offsets=(0, 8.0)))),
    ("refuse", 8, text(a=tensor(offsets=(0, [8])))),
    ("refuse", 8, text(a=tensor(offsets=(-8, 0)))),
    ("refuse", 8, text(a=tensor(offsets=(8, 0)))),
    ("refuse", 8, text(a=tensor(offsets=(2**64 - 4, 4)))),
    ("refuse", 8, text(a=tensor(offsets=(0, 7)))),
    ("refuse", 9, text(a=tensor(offsets=(0, 9)))),
    ("refuse", 7, text(a=A)),
    ("refuse", 9, text(a=A)),
    ("refuse", 1, b"{}"),
    ("refuse", 9, text(a=tensor(offsets=(1, 9)))),
    ("refuse", 17, text(a=A, b=tensor(offsets=(9, 17)))),
    ("refuse", 12, text(a=A, b=tensor(offsets=(4, 12)))),
    ("refuse", 8, text(a=A, b=A)),
    ("refuse", 8, text(a=A, b=tensor(shape=(0,), offsets=(4, 4)))),
    ("refuse", 8, text(a=A, b=tensor(shape=(0,), offsets=(9, 9)))),
    ("refuse", 2, text(a=tensor("F4", (3,), (0, 2)))),
    ("refuse", 8, text(a={"dtype": "F32", "shape": [2]})),
    ("refuse", 8, text(a={"dtype": "F32", "data_offsets": [0, 8]})),
    ("refuse", 8, text(a={"shape": [2], "data_offsets": [0, 8]})),
    ("refuse", 8, text(a=A)[:-2] + b',"dtype":"F32"}}'),
    ("refuse", 8, text(a=A)[:-2] + b',"shape":[2]}}'),
    ("refuse", 8, text(a=A, b=None)),
    ("refuse", 8, text(a=A, b=5)),
    ("refuse", 8, text(a=A, __metadata__={"x": 1})),
    ("refuse", 8, text(a=A, __metadata__={"x": {}})),
    ("refuse", 8, text(a=A, __metadata__={"x": None})),
    ("refuse", 8, text(a=A, __metadata__=[])),
    ("refuse", 8, text(a=A, __metadata__="x")),
    ("refuse", 8, b'{"__metadata__":{},"__metadata__":{}}'),
]


def accepts(header, data):
    try:
        safetensors.deserialize(len(header).to_bytes(8, "little") + header + bytes(data))
    except safetensors.SafetensorError:
        return False
    return True


def headers():
    lines, wrong = [], []
    for verdict, data, header in HEADERS:
        lines.append(f"{verdict} {data} {escape(header)}")
        if accepts(header, data) != (verdict != "refuse"):
            wrong.append(lines[-1])
    assert not wrong, "\n".join(wrong)
    (HERE / "headers.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    headers()
    types()
    model()
