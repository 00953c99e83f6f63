"""Reads conversations from JSON and Parquet, in chunks that processes can read by themselves."""

import json

import json_input
import numpy as np
from conversation_forms import WEIGHING, refuse_weights
from json_input import CHUNK_ROWS, Chunk
from model_folder import FolderError
from sample_file import SampleError, Xxh64

DEEPEST = 100  # levels of lists and objects; templates and json.dumps recurse
OTHER_MEDIA = ("video", "videos", "audio", "audios")
OTHER_PICTURES = ("image_path", "image_paths", "image_url", "image_urls", "image_file", "img", "pictures")  # names that others give them
SOURCES = ("image", "path", "url", "base64", *OTHER_PICTURES)  # of a part: the picture is the first of them
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
LONGEST_PATH, LONGEST_NAME = 4096, 255  # of Linux
COLUMNS = ("messages", "conversations", "system", "system_prompt", "image", "images", "tools", "functions", "label", "file_name",
           *OTHER_PICTURES, *OTHER_MEDIA, *WEIGHING)  # fmt: skip
MARK = "<image>"  # where a picture of "images" stands in a text, in LLaVA's form and in ShareGPT's


def _parquet(path):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise FolderError(f"{path}: Parquet needs the Python package pyarrow: /usr/bin/python3 -m pip install --target build/python 'pyarrow<20', "
                          f"and then PYTHONPATH=build/python ({error})", 69) from None  # fmt: skip
    try:
        return pyarrow.parquet.ParquetFile(path)
    except FileNotFoundError:
        raise FolderError(f"{path}: no such file", 66) from None
    except (OSError, pyarrow.ArrowException) as error:
        raise FolderError(f"{path}: not a Parquet file, or damaged ({error})") from None


def is_parquet(path):
    return path.suffix == ".parquet"


def chunks_of(path, copy):
    """Returns the chunks of a file. `copy` is the path of a file to make, which must stay, if the text is not that of a regular file."""
    if not is_parquet(path):
        return json_input.chunks_of(path, copy)
    metadata, chunks, first = _parquet(path).metadata, [], 1
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        for begin in range(0, rows, CHUNK_ROWS):
            end = min(begin + CHUNK_ROWS, rows)
            chunks.append(Chunk(path, first + begin, end - begin, begin, end, group=group))
        first += rows
    return chunks


def key_of(chunk, identity):
    """Returns a hash of what the samples of a chunk follow from, pictures in files of their names excepted."""
    place = f"{chunk.path.resolve().parent}\0{chunk.first}\0{chunk.group}\0{chunk.is_array}\0"
    if is_parquet(chunk.path):
        status = chunk.path.stat()
        contents = f"{chunk.path.name}\0{status.st_size}\0{status.st_mtime_ns}\0{chunk.begin}\0{chunk.end}".encode()
    else:
        contents = json_input.bytes_of(chunk)
    return Xxh64.of(np.array([identity], "<u8"), np.frombuffer(place.encode() + contents, np.uint8))


_last_group = None  # (path, group, table) of this process: its chunks follow one another


def rows_of(chunk):
    """Yields (number, row) for every row that is not empty; a row that cannot be read is a SampleError."""
    yield from _rows_of_parquet(chunk) if is_parquet(chunk.path) else json_input.rows_of(chunk)


def _rows_of_parquet(chunk):
    global _last_group
    if _last_group is None or _last_group[:2] != (chunk.path, chunk.group):
        file = _parquet(chunk.path)
        columns = [name for name in COLUMNS if name in file.schema_arrow.names]
        try:
            _last_group = chunk.path, chunk.group, file.read_row_group(chunk.group, columns=columns)
        except (OSError, ValueError) as error:
            raise FolderError(f"{chunk.path}: row group {chunk.group} is damaged: {error}") from None
    try:
        rows = _last_group[2].slice(chunk.begin, chunk.end - chunk.begin).to_pylist()
    except ValueError as error:
        raise FolderError(f"{chunk.path}: row group {chunk.group}: {error}") from None
    yield from ((number, _without_none(row)) for number, row in enumerate(rows, start=chunk.first))


def _without_none(value):
    """Parquet gives every struct all members, those that a message lacks as None."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _refuse_deep(value):
    level = [value]
    for _ in range(DEEPEST):
        level = [item for outer in level if isinstance(outer, (dict, list)) for item in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return
    raise SampleError("lists or objects are nested too deeply")


def conversation_of(row):
    """Returns the messages as a chat template takes them, the sources of their pictures (paths or bytes) in order, and the tools or
    None. Raises SampleError if the row is malformed."""
    if isinstance(row, SampleError):
        raise row
    if not isinstance(row, dict):
        raise SampleError("not a JSON object")
    row = {name: row[name] for name in row if row[name] is not None}
    _refuse_deep([row.get(name) for name in COLUMNS])
    name = "messages" if "messages" in row else "conversations"  # ShareGPT
    if isinstance(row.get(name), str):
        raise SampleError(f'"{name}" is a string, not a list of {{"role": ..., "content": ...}}; write the list itself, not its JSON text')
    if not isinstance(row.get(name), list) or not row[name]:
        raise SampleError(f'needs "messages", a list of {{"role": ..., "content": ...}}; it has {", ".join(map(repr, row)) or "nothing"}')
    _refuse_media(row, "", OTHER_MEDIA)
    refuse_weights({key: value for key, value in row.items() if value != 1}, "")
    if isinstance(row.get("label"), bool):
        raise SampleError('"label" true or false is preference data (KTO), and answers are learned here whatever it is; leave out the lines with '
                          "false, and the key in others")  # fmt: skip
    if row.get("functions"):
        raise SampleError('"functions" would be ignored; write "tools", a list of {"type": "function", "function": {"name": ...}}')
    listed = _listed(row)
    unused, pictures = list(listed), []
    messages = [_message(message, f"{name}[{i}]", unused, pictures) for i, message in enumerate(row[name])]
    for key in ("system", "system_prompt"):
        if row.get(key) and messages[0] != {"role": "system", "content": row[key]}:
            raise SampleError(f'"{key}" would be ignored; make it the first of the messages')
    marks = sum(message["content"].count(MARK) for message in messages if isinstance(message.get("content"), str))
    if not pictures and marks == len(listed):
        messages = [_with_places(message, f"{name}[{i}]", unused, pictures) for i, message in enumerate(messages)]
    if unused:
        raise SampleError(f'{len(listed)} "images", and {len(listed) - len(unused)} {{"type": "image"}} without a path in the messages; or each '
                          f"has its {MARK} in their texts, which have {marks}")  # fmt: skip
    if not pictures:  # beside pictures, such keys tell where they come from
        _refuse_media(row, "", [*OTHER_PICTURES, *["file_name"] * str(row.get("file_name", "")).lower().endswith(SUFFIXES)])
    return messages, pictures, _tools(row.get("tools"))


def _refuse_media(value, place, keys):
    for key in keys:
        if value.get(key):
            raise SampleError(f'{place}{key} would be ignored: only texts and pictures are read, each as a part of "content" such as '
                              '{"type": "image", "image": ...}, or pictures as "images" of the row')  # fmt: skip


def _listed(row):
    """Returns the pictures beside the messages: "images", or LLaVA's "image", which is one or a list."""
    one, several = row.get("image") or [], row.get("images", [])
    if not isinstance(several, list):
        raise SampleError('"images" must be a list')
    if one and several:
        raise SampleError('has both "image" and "images"; write "images" alone')
    return several or (one if isinstance(one, list) else [one])


def _with_places(message, place, unused, pictures):
    """Returns a message with pictures where its text has marks for them."""
    if not unused or not isinstance(message.get("content"), str) or MARK not in message["content"]:
        return message
    parts = []
    for text in message["content"].split(MARK):
        parts += [{"type": "text", "text": text}] if text else []
        parts.append(None)
    return {**message, "content": [part or _part({"type": "image"}, place, unused, pictures) for part in parts[:-1]]}


def _tools(tools):
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError) as error:
            raise SampleError(f'"tools" is a string, but not JSON: {error}') from None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise SampleError('"tools" must be a list of objects')
    return tools or None


def _message(message, place, unused, pictures):
    if isinstance(message, dict) and "from" in message and not {"role", "content"} & set(message):  # ShareGPT
        message = {{"from": "role", "value": "content"}.get(key, key): value for key, value in message.items()}
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise SampleError(f'{place} must be {{"role": "system", "user", "assistant" or "tool", "content": ...}}')
    message = {key: value for key, value in message.items() if value is not None}  # as transformers
    _refuse_media(message, f"{place}.", ("image", "images", *OTHER_PICTURES, *OTHER_MEDIA))
    content = message.get("content")
    if isinstance(content, str) or content is None and message.get("tool_calls"):
        return message
    if not isinstance(content, list):
        raise SampleError(f'{place}.content must be a string or a list of {{"type": "text", ...}} and {{"type": "image", ...}}')
    parts = []
    for i, part in enumerate(content):
        part = _part(part, f"{place}.content[{i}]", unused, pictures)
        if parts and part["type"] == parts[-1]["type"] == "text":  # as the template joins them: two may make a special token
            part = {"type": "text", "text": parts.pop()["text"] + part["text"]}
        parts.append(part)
    if all(part["type"] == "text" for part in parts):  # templates of text models know strings only
        return {**message, "content": "".join(part["text"] for part in parts)}
    return {**message, "content": parts}


def _part(part, place, unused, pictures):
    if not isinstance(part, dict):
        raise SampleError(f'{place} must be {{"type": "text", "text": ...}} or {{"type": "image", "image": ...}}')
    part = {key: value for key, value in part.items() if value is not None}
    kind = part.get("type", "image" if "image" in part else "text" if "text" in part else None)
    if kind not in ("text", "image") or kind == "text" and not isinstance(part.get("text"), str):
        raise SampleError(f"{place} is of type {kind!r}; allowed are text and image")
    refuse_weights(part, place)
    _refuse_media(part, f"{place}.", ("images", *(("text",) if kind == "image" else ("image", *OTHER_PICTURES)), *OTHER_MEDIA))
    if kind == "text":
        return {"type": "text", "text": part["text"]}
    source = next((part[key] for key in SOURCES if key in part), None)
    if source is None:
        if not unused:
            raise SampleError(f'{place} names no picture, and "images" has no more')
        source = unused.pop(0)
    if isinstance(source, dict):  # an Image of the package datasets
        source = source.get("bytes") or source.get("path") or source.get("url")
    if not isinstance(source, (str, bytes)) or not source:
        raise SampleError(f"{place}: a picture must be a path, or bytes in Parquet")
    if isinstance(source, str) and source[:6].lower().startswith(("http:", "https:", "data:", "file:")):
        hint = "leave out file://" if source[:5].lower() == "file:" else "download pictures first"
        raise SampleError(f"{place}: {source[:40]!r} must be a path; {hint}")
    if isinstance(source, str) and (len(source) > LONGEST_PATH or len(source) > LONGEST_NAME and "." not in source):
        raise SampleError(f"{place}: a picture must be a path of a file; this looks like base64, {source[:40]!r}...; write it into a file first")
    pictures.append(source)
    return {"type": "image"}
