"""Reads and checks sample files (docs/file_formats.md)."""

import h5py
import numpy as np
from sample_file import FORMAT, VERSION, Sample, SampleError, Xxh64, check_sample, identity_of, index_checksum, weight_of

HEADER = ("vocabulary", "marker", "channels")


def _open(path):
    """Returns the attributes, the arrays of the index, and memory maps of the large arrays, which are not read yet."""
    with h5py.File(path, "r") as file:
        attributes = dict(file.attrs)
        index = {f"index/{name}": item[...] for name, item in file["index"].items()}
        places = {name: (file[name].id.get_offset(), file[name].shape, file[name].dtype) for name in ("tokens", "loss_weight", "flags", "pixels")}
    data = {name: np.memmap(path, dtype, "r", offset, shape) if shape[0] else np.zeros(0, dtype) for name, (offset, shape, dtype) in places.items()}
    return attributes, index, data


def _check_index(index, data):
    """Raises SampleError unless the arrays of the index agree with each other and with the file."""
    starts = {"sample_offsets": len(data["tokens"]), "picture_offsets": len(index["index/picture_shape"]), "pixel_offsets": len(data["pixels"])}
    for name, total in starts.items():
        offsets = index[f"index/{name}"]
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
            raise SampleError(f"dataset 'index/{name}': does not rise from 0 to {total}")
    samples, pictures = len(index["index/sample_offsets"]) - 1, len(index["index/picture_shape"])
    lengths = {"picture_offsets": samples + 1, "pixel_offsets": pictures + 1, "checksum": samples, "loss_weight": samples, "pixel_checksum": pictures}
    for name, length in lengths.items():
        if len(index[f"index/{name}"]) != length:
            raise SampleError(f"dataset 'index/{name}': not {length} elements")


def read_samples(path):
    """Yields every Sample of a file, with numpy arrays, after comparing its checksums and checking its rules. Raises SampleError.
    At the end, all of the file except its HDF5 metadata has been checked."""
    attributes, index, data = _open(path)
    if attributes.get("format") != np.bytes_(FORMAT) or attributes.get("version") != VERSION:
        raise SampleError(f"{path}: not a sample file of version {VERSION}")
    try:
        _check_index(index, data)
    except SampleError as error:
        raise SampleError(f"{path}: {error}") from None
    header = [int(attributes[name]) for name in HEADER]
    identity = attributes["identity"]
    if attributes["index_checksum"] != index_checksum(header, identity, index):
        raise SampleError(f"{path}: the index does not match its checksum")
    whole_checksums = []
    for i in range(len(index["index/sample_offsets"]) - 1):
        try:
            sample, whole = _read(i, dict(zip(HEADER, header)), index, data)
        except SampleError as error:
            raise SampleError(f"{path}: sample {i}: {error}") from None
        whole_checksums.append(whole)
        yield sample
    if identity_of(header, index, np.array(whole_checksums, "<u8")) != identity:
        raise SampleError(f"{path}: attribute 'identity': not that of the samples")


def _read(i, header, index, data):
    """Returns sample i and the checksum of all its arrays."""
    span = slice(*index["index/sample_offsets"][i : i + 2])
    sample = Sample(*(np.array(data[name][span]) for name in ("tokens", "loss_weight", "flags")))
    text = (sample.tokens, sample.weights, sample.flags)
    for j in range(*index["index/picture_offsets"][i : i + 2]):
        pixels = np.array(data["pixels"][slice(*index["index/pixel_offsets"][j : j + 2])])
        if Xxh64.of(pixels) != index["index/pixel_checksum"][j]:
            raise SampleError(f"picture {j} of the file does not match its checksum: damaged or changed")
        shape = (*index["index/picture_shape"][j], header["channels"])
        if pixels.size != np.prod(shape):
            raise SampleError(f"picture {j} of the file has {pixels.size} bytes, not those of {shape}")
        sample.pictures.append(pixels.reshape(shape))
    if Xxh64.of(*text) != index["index/checksum"][i]:
        raise SampleError("does not match its checksum: damaged or changed")
    check_sample(*text, sample.pictures, **header)
    if weight_of(sample.weights) != index["index/loss_weight"][i]:
        raise SampleError(f"the index has a loss weight of {index['index/loss_weight'][i]}, not that of its tokens")
    return sample, Xxh64.of(*text, *sample.pictures)
