import gzip
import json
import subprocess
import sys
from pathlib import Path

import make_jsonl
import numpy as np
import pytest
from PIL import Image
from sample_reader import read_samples


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (9, 5), (10, 20, 30)).save(tmp_path / "a.png")
    Image.new("L", (16, 12), 77).save(tmp_path / "b.jpg")
    Image.new("RGBA", (3, 4)).save(tmp_path / "c.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(tmp_path / "deep.png")
    return tmp_path


def make(folder, *records, options=()):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (folder / "own.jsonl").write_text("\n".join(lines) + "\n")
    make_jsonl.main([str(folder / "own.jsonl"), str(folder / "own.h5"), *options])
    return list(read_samples(folder / "own.h5"))


def test_interleaves_text_and_pictures(folder):
    first, second, third = make(
        folder,
        {"text": "a <image> and <image>.", "images": ["a.png", "b.jpg"], "answer": "xy"},
        {"content": [{"image": "c.png"}, {"text": "né"}, {"answer": "!"}]},
        {"text": "only text"},
    )
    assert list(first.tokens) == [257, *b"a ", 256, *b" and ", 256, *b".", *b"xy", 258]
    assert [p.shape for p in first.pictures] == [(5, 9, 3), (12, 16, 3)]
    assert (first.pictures[0][0, 0] == [10, 20, 30]).all()
    assert list(np.flatnonzero(first.flags)) == [len(first.tokens) - 3, len(first.tokens) - 2]
    assert first.weights[0] == 0 and first.weights[3] == 0 and first.weights[1] == 1
    assert list(second.tokens) == [257, 256, *"né".encode(), *b"!", 258]
    assert third.pictures == []


def test_options_shape_pictures_and_weights(folder):
    (sample,) = make(folder, {"text": "q<image>", "images": ["b.jpg"], "answer": "z"},
                     options=["--channels", "1", "--largest", "8", "--text-weight", "0", "--answer-weight", "3"])  # fmt: skip
    assert sample.pictures[0].shape == (6, 8, 1)
    assert list(sample.weights) == [0, 0, 0, 3, 1]
    # The end is learned behind what is learned.
    only, turned, _ = make(folder, {"text": "ab"}, {"content": [{"answer": "x"}, {"text": "b"}]}, {"text": "", "answer": ""}, options=["--text-weight", "0"])
    assert not any(only.weights) and list(turned.weights) == [0, 1, 0, 0]
    with pytest.raises(SystemExit, match="nothing to learn") as ended:
        make(folder, {"text": "ab"}, options=["--text-weight", "0"])
    assert ended.value.code == 65


def test_pictures_are_turned_upright(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("L", (40, 24)).save(folder / "turned.png", exif=exif)
    (sample,) = make(folder, {"text": "<image>", "images": ["turned.png"]})
    assert sample.pictures[0].shape == (40, 24, 3)


def test_arrays_and_compressed_files(folder, capsys):
    expected = make(folder, {"text": "a"}, {"text": "b"})
    (folder / "own.json").write_bytes(gzip.compress(b'[{"text": "a"},\n{"text": "b"}]'))
    make_jsonl.main([str(folder / "own.json"), str(folder / "array.h5")])
    assert [list(s.tokens) for s in read_samples(folder / "array.h5")] == [list(s.tokens) for s in expected]
    (folder / "own.json").write_text('[{"text": "a"}, 7]')
    with pytest.raises(SystemExit, match="1 bad lines"):
        make_jsonl.main([str(folder / "own.json"), str(folder / "bad.h5")])
    assert "own.json[1]: not a JSON object" in capsys.readouterr().err and not list(folder.glob(".*"))


@pytest.mark.parametrize(
    "record, message",
    [
        ("{", "own.jsonl:2: "),
        ("[]", "not a JSON object"),
        ("[" * 100000, "own.jsonl:2: "),
        ({"txt": "a"}, "unknown key 'txt'"),
        ({"images": []}, "needs either"),
        ({"text": "a", "content": []}, "needs either"),
        ({"text": 3}, "must be a string"),
        ({"text": "a <image>"}, "1 times <image> in the text and 0 images"),
        ({"text": "a", "images": ["a.png"]}, "0 times <image>"),
        ({"text": "<image>", "images": ["none.png"]}, "no such picture"),
        ({"text": "<image>", "images": ["broken.png"]}, "not a picture"),
        ({"text": "<image>", "images": ["deep.png"]}, "deep.png: has 16-bit or float pixels; convert it to 8 bits"),
        ({"text": "<image>", "images": ["A" * 10000]}, "File name too long"),
        ({"text": "<image>", "images": [7]}, "must be a string"),
        ({"content": [{"text": "a", "image": "b"}]}, "holds objects"),
        ({"content": [], "images": []}, "belongs to"),
        ({"text": "a", "answer": 1}, "must be a string"),
        ({"text": "\ud800"}, "half of a character"),
    ],
)
def test_bad_lines_are_named(folder, capsys, record, message):
    with pytest.raises(SystemExit, match="1 bad lines"):
        make(folder, {"text": "good"}, record)
    errors = capsys.readouterr().err
    assert "own.jsonl:2: " in errors and message in errors and len(errors) < 1000
    assert not (folder / "own.h5").exists()


def test_missing_and_empty_inputs(folder):
    with pytest.raises(SystemExit, match="No such file"):
        make_jsonl.main([str(folder / "none.jsonl"), str(folder / "own.h5")])
    with pytest.raises(SystemExit, match="1 bad lines") as ended:
        make(folder)
    assert ended.value.code == 65


def test_long_samples_are_refused_on_request(folder, capsys):
    with pytest.raises(SystemExit):
        make(folder, {"text": "abc"}, options=["--longest", "4"])
    assert "5 tokens" in capsys.readouterr().err


def test_says_when_tokenizers_is_missing(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SystemExit, match="/usr/bin/python3 -m pip install --target build/python tokenizers"):
        make(folder, {"text": "a"}, options=["--tokenizer", "tokenizer.json"])


def test_hugging_face_tokenizer(folder):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "cat": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    (sample,) = make(folder, {"text": "a <image> cat dog", "images": ["a.png"]}, options=["--tokenizer", str(folder / "tokenizer.json")])
    assert list(sample.tokens) == [4, 1, 3, 2, 0, 5]


def test_what_a_tokenizer_file_says_of_lengths_and_special_tokens(folder, capsys):
    """Truncation and padding are not obeyed, and a text cannot write special tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(["<|end|>"])
    words.enable_truncation(3)
    words.enable_padding(length=8)
    words.save(str(folder / "tokenizer.json"))
    options = ["--tokenizer", str(folder / "tokenizer.json")]
    short, long = make(folder, {"text": "a"}, {"text": "a a a a a"}, options=options)
    assert list(short.tokens) == [4, 1, 5] and list(long.tokens) == [4, 1, 1, 1, 1, 1, 5]
    with pytest.raises(SystemExit, match="1 bad lines"):
        make(folder, {"text": "a"}, {"text": "a", "answer": "a<|end|>"}, options=options)
    assert "own.jsonl:2: the text contains the special token '<|end|>'" in capsys.readouterr().err


def test_another_python_without_packages_is_told(folder):
    script = Path(make_jsonl.__file__)
    made = subprocess.run([sys.executable, "-S", "-E", script, "a.jsonl", "a.h5"], capture_output=True, text=True)
    assert made.returncode == 69 and "lacks the Python packages h5py, numpy, pillow" in made.stderr and f"/usr/bin/python3 {script} a.jsonl a.h5" in made.stderr
