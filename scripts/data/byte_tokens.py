"""The tokenizer "bytes": ids 0..255 are UTF-8 bytes; 256, 257 and 258 are marker, begin and end; 259 is unused."""

MARKER = 256
BEGIN = 257
END = 258
VOCABULARY = 260


def encode(text):
    return list(text.encode("utf-8"))
