import check_samples
import h5py
import numpy as np
import pytest
from sample_file import Sample, SampleError, SampleWriter, Xxh64
from sample_reader import read_samples


def writer(path, **changes):
    return SampleWriter(path, **{"vocabulary": 260, "marker": 256, **changes})


def sample(*pictures):
    made = Sample()
    made.add([257], weight=0.0)
    for picture in pictures:
        made.add_picture(256, picture)
    made.add([97, 98], weight=2.5, flag=1)
    return made


def picture(height, width, channels=1):
    return (np.arange(height * width * channels) % 251).astype(np.uint8).reshape(height, width, channels)


def test_checksum_is_xxh64():
    letters = np.frombuffer(b"abc", "u1")
    assert Xxh64.of() == Xxh64.of(letters[:0]) == 0xEF46DB3751D8E999
    assert Xxh64.of(letters[:1], letters[1:]) == 0x44BC2CF5AD770999


def test_reads_back_what_was_written(tmp_path):
    path = tmp_path / "folder" / "samples.h5"
    made = writer(path)
    made.add(sample())
    made.add(sample(picture(5, 7), picture(8, 3)))
    made.close()
    first, second = read_samples(path)
    assert first.pictures == [] and list(first.tokens) == [257, 97, 98]
    assert list(second.weights) == [0, 0, 0, 2.5, 2.5] and list(second.flags) == [0, 0, 0, 1, 1]
    assert [p.shape for p in second.pictures] == [(5, 7, 1), (8, 3, 1)]
    assert (second.pictures[1] == picture(8, 3)).all()
    assert sorted(p.name for p in path.parent.iterdir()) == ["samples.h5"]


def test_arrays_are_contiguous_with_checksummed_metadata(tmp_path):
    made = writer(tmp_path / "samples.h5", channels=3)
    made.add(sample(picture(4, 4, 3)))
    made.close()
    assert (tmp_path / "samples.h5").read_bytes()[8] in (2, 3)
    with h5py.File(tmp_path / "samples.h5") as file:
        file.visititems(lambda _, item: isinstance(item, h5py.Group) or item.chunks is None or pytest.fail(item.name))
        assert file["index/pixel_offsets"][...].tolist() == [0, 48]
        assert file.attrs["channels"] == 3


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: s.tokens.__setitem__(1, 260), "vocabulary"),
        (lambda s: s.tokens.__setitem__(1, -1), "vocabulary"),
        (lambda s: s.weights.__setitem__(1, float("nan")), "finite"),
        (lambda s: s.weights.__setitem__(1, -1.0), "finite"),
        (lambda s: s.weights.__setitem__(0, 1.0), "first token"),
        (lambda s: s.weights.pop(), "weights"),
        (lambda s: s.pictures.append(picture(2, 2)), "1 pictures"),
        (lambda s: s.tokens.__setitem__(1, 256) or s.weights.__setitem__(1, 0) or s.flags.__setitem__(1, 0), "1 markers"),
    ],
)
def test_refuses_bad_samples(tmp_path, change, message):
    made, bad = writer(tmp_path / "samples.h5"), sample()
    change(bad)
    with pytest.raises(SampleError, match=message):
        made.add(bad)


@pytest.mark.parametrize("bad", [picture(0, 3), picture(4097, 1), picture(2, 2, 3), picture(2, 2).astype(np.float32)])
def test_refuses_bad_pictures(tmp_path, bad):
    with pytest.raises(SampleError, match="picture"):
        writer(tmp_path / "samples.h5").add(sample(bad))


def test_leaves_nothing_behind_without_close(tmp_path):
    writer(tmp_path / "samples.h5").add(sample())
    with pytest.raises(SampleError, match="no samples"):
        writer(tmp_path / "samples.h5").close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def good(tmp_path):
    made = writer(tmp_path / "samples.h5")
    made.add(sample())
    made.add(sample(picture(5, 7), picture(8, 3)))
    made.close()
    return tmp_path / "samples.h5"


def change(path, name, place, value):
    with h5py.File(path, "r+") as file:
        file[name][place] = value


@pytest.mark.parametrize(
    "name, place, value, message",
    [
        ("pixels", 3, 7, "sample 1: picture 0 of the file"),
        ("pixels", 40, 7, "sample 1: picture 1 of the file"),
        ("tokens", 2, 99, "sample 0: does not match its checksum"),
        ("loss_weight", 2, 1.0, "sample 0: does not match its checksum"),
        ("flags", 7, 0, "sample 1: does not match its checksum"),
        ("index/loss_weight", 0, 6.0, "the index does not match"),
        ("index/pixel_checksum", 1, 0, "the index does not match"),
        ("index/sample_offsets", 2, 99, "does not rise from 0"),
    ],
)
def test_damage_is_noticed(good, capsys, name, place, value, message):
    change(good, name, place, value)
    with pytest.raises(SampleError, match=message):
        list(read_samples(good))
    with pytest.raises(SystemExit) as ended:
        check_samples.main([str(good)])
    assert ended.value.code == 65
    assert message in capsys.readouterr().err


def test_every_flipped_byte_is_noticed_or_harmless(good):
    """As the reader in C++: whatever is changed, samples are read as they were, or not at all."""
    whole = bytearray(good.read_bytes())
    expected = [(s.tokens.tobytes(), s.weights.tobytes(), s.flags.tobytes(), [p.tobytes() for p in s.pictures]) for s in read_samples(good)]
    damaged, refused = good.with_name("damaged.h5"), 0
    for at in range(0, len(whole), 19):
        whole[at] ^= 1 << at % 8
        damaged.write_bytes(whole)
        whole[at] ^= 1 << at % 8
        try:
            found = [(s.tokens.tobytes(), s.weights.tobytes(), s.flags.tobytes(), [p.tobytes() for p in s.pictures]) for s in read_samples(damaged)]
            assert found == expected, at
        except AssertionError:
            raise
        except Exception:
            refused += 1
    assert refused > 50


def test_the_check_passes_what_is_right(good, capsys, tmp_path):
    check_samples.main([str(good)])
    assert "2 samples, 8 tokens, no errors" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        check_samples.main([str(tmp_path / "none.h5")])
    assert ended.value.code == 66
    (tmp_path / "words.h5").write_text("words")
    with pytest.raises(SystemExit) as ended:
        check_samples.main([str(tmp_path / "words.h5"), str(good)])
    assert ended.value.code == 65


def test_weights_are_summed_in_the_order_of_tokens(tmp_path):
    many = Sample()
    many.add([257], weight=0.0)
    for i in range(300):
        many.add([97], weight=0.1 * 3.0**(i % 37))
    made = writer(tmp_path / "samples.h5")
    made.add(many)
    made.close()
    total = 0.0
    for weight in np.asarray(many.weights, "f4"):
        total += float(weight)
    with h5py.File(tmp_path / "samples.h5") as file:
        assert file["index/loss_weight"][0] == total
