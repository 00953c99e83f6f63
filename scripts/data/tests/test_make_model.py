"""The folders that make_model.py writes, compared with those that transformers wrote in tests/golden/families; and make_chats.py."""

import json
from pathlib import Path

import byte_bpe
import make_chats
import make_model
import numpy as np
import pytest
from PIL import Image

GOLDEN = Path(__file__).resolve().parents[3] / "tests/golden/families"
SIZES = {  # of make_families.py
    "llama": ["--layers", "2", "--width", "32", "--head-dim", "8", "--mlp", "40", "--untied"],
    "qwen3": ["--layers", "2", "--width", "24", "--head-dim", "16", "--mlp", "40"],
    "qwen3_moe": ["--layers", "3", "--width", "24", "--head-dim", "8", "--mlp", "40", "--expert-mlp", "16", "--untied"],
    "qwen3_vl": ["--layers", "3", "--width", "24", "--head-dim", "8", "--mlp", "20", "--patch", "4", "--vision-layers", "3", "--vision-width", "16",
                 "--vision-heads", "2", "--vision-mlp", "20"],
}  # fmt: skip


def read_safetensors(path):
    """The header, and the bytes behind it."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:begin]), data[begin:]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for family, sizes in SIZES.items():
        make_model.main([family, str(folder / family), "--merges", "40", *sizes])
    return folder


@pytest.mark.parametrize("family", SIZES)
def test_the_tensors_are_those_that_transformers_writes(folders, family):
    made, data = read_safetensors(folders / family / "model.safetensors")
    golden, _ = read_safetensors(GOLDEN / family / "model.safetensors")
    vocabulary = json.loads((folders / family / "tokenizer.json").read_text())["added_tokens"][-1]["id"] + 1
    padded = -(-vocabulary // 64) * 64
    resized = {"embed_tokens.weight": padded, "lm_head.weight": padded, "pos_embed.weight": 64}
    expected = {name: tensor["shape"] for name, tensor in golden.items() if name != "__metadata__"}
    if family == "qwen3_moe":  # the golden one has a layer without experts
        expected = {name: shape for name, shape in expected.items() if ".layers.0.mlp." not in name}
        expected |= {name.replace(".layers.1.", ".layers.0."): list(shape) for name, shape in expected.items() if ".layers.1.mlp." in name}
    for name, shape in expected.items():
        shape[0] = next((rows for end, rows in resized.items() if name.endswith(end)), shape[0])
    assert {name: tensor["shape"] for name, tensor in made.items() if name != "__metadata__"} == expected
    assert made.pop("__metadata__") == {"format": "pt"} and {tensor["dtype"] for tensor in made.values()} == {"BF16"}
    assert sum(2 * np.prod(shape) for shape in expected.values()) == len(data)


@pytest.mark.parametrize("family", SIZES)
def test_the_configuration_has_the_keys_of_transformers_4_57(folders, family):
    made, golden = (json.loads(path.read_text()) for path in (folders / family / "config.json", GOLDEN / family / "config_4.57.json"))
    for part in ((), ("text_config",), ("vision_config",)):
        for key in part:
            made, golden = made.get(key, {}), golden.get(key, {})
        optional = {"bos_token_id", "eos_token_id", "layer_types", "dtype"}
        assert set(made) - optional == set(golden) - optional, part
    assert not {"model_type", "vocab_size"} & {key for key in golden if made.get(key) != golden[key]} - {"vocab_size"}


def test_weights_are_drawn_as_transformers_draws_them(folders):
    header, data = read_safetensors(folders / "qwen3/model.safetensors")

    def values(name):
        begin, end = header[name]["data_offsets"]
        return (np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16).view("<f4")

    embedding = values("model.embed_tokens.weight")
    assert abs(embedding.std() - 0.02) < 0.001 and abs(embedding.mean()) < 0.001
    assert (values("model.norm.weight") == 1).all()
    # To nearest, halves to even: 1 + 1/256 lies between 1 and 1 + 1/128, 1 + 3/256 between 1 + 1/128 and 1 + 1/64.
    assert make_model.bf16(np.array([1 + 1 / 256, 1 + 3 / 256, 1 + 1.1 / 256, -2], "f4")).tolist() == [0x3F80, 0x3F82, 0x3F81, 0xC000]


def test_a_seed_changes_the_weights_alone(folders, tmp_path):
    for seed in ("1", "2"):
        make_model.main(["qwen3", str(tmp_path / seed), "--merges", "40", *SIZES["qwen3"], "--seed", seed])
    same = [path.name for path in (tmp_path / "1").iterdir() if path.read_bytes() == (tmp_path / "2" / path.name).read_bytes()]
    assert {path.name for path in (tmp_path / "1").iterdir()} - set(same) == {"model.safetensors"}
    assert (tmp_path / "1/model.safetensors").read_bytes() == (folders / "qwen3/model.safetensors").read_bytes()
    with pytest.raises(SystemExit, match="a model is there already"):
        make_model.main(["qwen3", str(tmp_path / "1")])


def test_merges_are_the_most_frequent_pairs():
    # "ow" occurs four times, "Ġl" and "lo" three times (the later in the alphabet first), "Ġb" and "bo" once, which is too little.
    assert byte_bpe.learn_merges(" low low low bow", 9) == [("o", "w"), ("Ġ", "l"), ("Ġl", "ow")]


@pytest.mark.parametrize("family", SIZES)
def test_the_tokenizer_keeps_every_text(folders, family):
    tokenizers = pytest.importorskip("tokenizers", reason="the Python package tokenizers is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(folders / family / "tokenizer.json"))
    text = "The licence of 1234 cats:\n\n\tnäïve 🐱'll  end"
    end = "<|eot_id|>" if family == "llama" else "<|im_end|>"
    encoded = tokenizer.encode(text + end, add_special_tokens=False)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text + end
    assert encoded.ids[-1] == tokenizer.token_to_id(end) and len(encoded.ids) < len((text + end).encode())
    begin = tokenizer.encode("a").tokens[0]
    assert begin == ("<|begin_of_text|>" if family == "llama" else "a")


def test_conversations_name_what_their_pictures_show(tmp_path):
    make_chats.main([str(tmp_path / "a"), "--count", "30"])
    make_chats.main([str(tmp_path / "b"), "--count", "30", "--pictures", "0"])
    rows, texts = ([json.loads(line)["messages"] for line in (tmp_path / name / "chats.jsonl").read_text().splitlines()] for name in "ab")
    shown = [row for row in rows if isinstance(row[0]["content"], list)]
    assert len(rows) == len(texts) == 30 and len(shown) == 15 and not (tmp_path / "b/pictures").exists()
    assert all(isinstance(message["content"], str) for row in texts for message in row)
    for row in shown:
        assert row[1]["content"].startswith(("It is the letter ", "It is the digit "))
        with Image.open(tmp_path / "a" / row[0]["content"][0]["image"]) as picture:
            assert {*picture.size} <= {32, 48} and len(set(picture.getdata())) > 2
    assert all([message["role"] for message in row] == ["user", "assistant"] * (len(row) // 2) for row in rows)
