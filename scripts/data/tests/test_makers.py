import time
import unicodedata

import byte_tokens
import make_all
import make_glyphs
import make_mixed
import make_text
import pytest
from glyphs import FACES, distinct, parse_characters, render
from sample_reader import read_samples

SMALL = ["--train", "120", "--validation", "40"]


def text_of(sample):
    return bytes(int(token) for token in sample.tokens if token < 256).decode()


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("glyphs") / "glyphs"
    make_glyphs.main([str(prefix), *SMALL])
    return {name: list(read_samples(f"{prefix}-{name}.h5")) for name in ("train", "validation")}


def test_half_of_the_samples_have_pictures_some_several(glyphs):
    counts = [len(sample.pictures) for sample in glyphs["train"]]
    assert len(counts) == 120 and sum(count > 0 for count in counts) == 60
    assert {1, 2, 3} <= set(counts)
    assert len({picture.shape for sample in glyphs["train"] for picture in sample.pictures}) == 5


def test_text_names_the_characters(glyphs):
    for sample in glyphs["train"] + glyphs["validation"]:
        assert sample.tokens[0] == byte_tokens.BEGIN and sample.tokens[-1] == byte_tokens.END
        if not sample.pictures:
            assert not sample.flags.any() and 64 <= len(sample.tokens) - 2 <= 128
            continue
        lines = text_of(sample).split("\n")
        assert len(lines) == len(sample.pictures)
        for line in lines:
            assert unicodedata.name(line[0]) == line[2:]
        counted = bytes(int(token) for token, flag in zip(sample.tokens, sample.flags) if flag).decode()
        assert counted == "".join(lines)
        assert (sample.weights == 10).sum() == len(lines)


def test_no_rendering_is_in_both_files(glyphs):
    seen = {name: {(p.shape, p.tobytes()) for s in glyphs[name] for p in s.pictures} for name in glyphs}
    assert len(seen["train"]) > 60 and not seen["train"] & seen["validation"]


def test_a_file_that_needs_more_renderings_uses_its_own_again(tmp_path):
    few = ["--characters", "AB", "--faces", "DejaVuSans", "--sizes", "24x24", "--shift", "1", "--train", "60", "--validation", "4"]
    make_glyphs.main([str(tmp_path / "few"), *few])
    seen = [{p.tobytes() for s in read_samples(tmp_path / f"few-{name}.h5") for p in s.pictures} for name in ("train", "validation")]
    assert not seen[0] & seen[1]
    with pytest.raises(SystemExit, match="no rendering is left"):
        make_glyphs.main([str(tmp_path / "few"), *few[:-1], "60"])


def test_the_seed_decides(tmp_path):
    for name, seed, wait in (("a", "1", 1.1), ("b", "1", 0), ("c", "2", 0)):
        make_glyphs.main([str(tmp_path / name), *SMALL, "--seed", seed])
        time.sleep(wait)  # HDF5 counts times of creation in seconds; none may be in the file
    made = [(tmp_path / f"{name}-train.h5").read_bytes() for name in "abc"]
    assert made[0] == made[1] != made[2]


def test_text_held_out_is_not_in_the_training_file(tmp_path):
    make_text.main([str(tmp_path / "text"), "--train", "300", "--validation", "30"])
    train = [text_of(s) for s in read_samples(tmp_path / "text.h5")]
    held_out = [text_of(s) for s in read_samples(tmp_path / "text-validation.h5")]
    assert len(train) == 300 and len(held_out) == 30
    assert not any(piece in text for piece in held_out for text in train)


def test_look_alikes_and_absent_characters_are_left_out():
    faces = FACES[:2]
    assert distinct(["A", "\u0391", "\u0410", "B"], faces) == ["A", "B"]
    assert distinct(["\U00013000", " ", "\n", "\u0301", "C"], faces) == ["C"]
    assert len(distinct(parse_characters("letters,digits,U+00A1-U+024F"), FACES, 250)) == 250


def test_characters_are_parsed():
    assert parse_characters("digits,A,U+0041-U+0043") == list("0123456789ABC")
    with pytest.raises(SystemExit, match="U\\+00C0-U\\+024F"):
        parse_characters("U+zz")


def test_pictures_hold_the_whole_character():
    for face in FACES:
        for character in parse_characters("digits,capitals"):
            middle = 255.0 - render(character, face, (24, 24), (0, 0))
            assert middle.shape == (24, 24, 1) and middle.max() > 191
            assert not middle[[0, -1]].any()
            for shift in ((2, 2), (-2, -2)):
                moved = 255.0 - render(character, face, (24, 24), shift)
                assert moved.sum() > 0.95 * middle.sum()


@pytest.mark.parametrize("bad", [["--sizes", "24"], ["--sizes", "4x4"], ["--shift", "9"], ["--pictures", "2"], ["--train", "0"], ["--text-bytes", "x"], ["--faces", "Arial"]])
def test_bad_options_are_refused(tmp_path, bad):
    with pytest.raises(SystemExit):
        make_glyphs.main([str(tmp_path / "x"), *bad])
    assert list(tmp_path.iterdir()) == []


def test_make_all_makes_what_is_missing(tmp_path, monkeypatch):
    """The makers by other tests; with all files by ctest's `samples`."""
    made = []
    for maker in (make_glyphs, make_text, make_mixed):
        monkeypatch.setattr(maker, "main", made.append)
    (tmp_path / "text-only.h5").touch()
    (tmp_path / "mixed.h5").touch()
    make_all.main(["--folder", str(tmp_path), "--seed", "7"])
    assert made == [[str(tmp_path / "glyphs"), *make_all.SMALL, "--seed", "7"], [str(tmp_path / "text-only"), "--seed", "7"]]
    make_all.main(["--folder", str(tmp_path), "--force", "--large"])
    assert [arguments[0] for arguments in made[2:]] == [str(tmp_path / name) for name in ("glyphs", "text-only", "mixed.h5", "glyphs-large")]


def test_mixed_samples_have_the_sizes_asked_for(tmp_path):
    def make(share, name="a.h5"):
        make_mixed.main([str(tmp_path / name), "--samples", "300", "--share", str(share), "--tokens", "200", "--pixels", "2000",
                         "--sigma", "0.5"])
        return list(read_samples(tmp_path / name))

    third, all_of_them = make(1 / 3), make(1)
    with_pictures = [i for i, sample in enumerate(third) if sample.pictures]
    assert len(with_pictures) == 100 and all(sample.pictures for sample in all_of_them)
    lengths = [len(sample.tokens) - len(sample.pictures) for sample in third]
    assert sum(lengths) / 300 == pytest.approx(200, rel=0.15)
    areas = [picture.shape[0] * picture.shape[1] for sample in all_of_them for picture in sample.pictures]
    assert sum(areas) / 300 == pytest.approx(2000, rel=0.15)
    assert [len(sample.tokens) - 1 for sample in all_of_them] == lengths  # only the pictures differ
    assert [third[i].pictures[0].shape for i in with_pictures] == [all_of_them[i].pictures[0].shape for i in with_pictures]
    make(1 / 3, "b.h5")
    make(1 / 3, "c.h5")
    assert (tmp_path / "b.h5").read_bytes() == (tmp_path / "c.h5").read_bytes()
