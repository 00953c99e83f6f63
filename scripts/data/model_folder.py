"""What the data tools take from a Hugging Face model folder: tokenizer, chat template, special ids, sizes of pictures."""

import datetime
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from picture_size import PictureSize
from sample_file import Xxh64

# Characters that Unicode keeps free for a program's internal use; they enclose what {% generation %} encloses.
BEGIN_ANSWER, END_ANSWER = "\ufdd0", "\ufdd1"
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
PACKAGES = "/usr/bin/python3 -m pip install --target build/python tokenizers jinja2, and then PYTHONPATH=build/python"


class FolderError(ValueError):
    """The model folder lacks something or holds something that is not supported. `code` is the exit code."""

    def __init__(self, message, code=65):
        super().__init__(message)
        self.code = code


class ChatTemplate:
    """A Jinja template, rendered as transformers does. `date` (datetime) is what `strftime_now` prints."""

    def __init__(self, source, variables, date):
        try:
            from jinja2 import TemplateError, nodes
            from jinja2.ext import Extension, loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise FolderError(f"chat templates need the Python package jinja2: {PACKAGES}", 69) from None

        class Generation(Extension):
            """{% generation %}...{% endgeneration %} encloses what the assistant writes."""

            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return nodes.CallBlock(self.call_method("_enclose"), [], [], body).set_lineno(line)

            def _enclose(self, caller):
                return BEGIN_ANSWER + caller() + END_ANSWER

        def raise_exception(message):
            raise TemplateError(message)

        def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        environment.filters["tojson"] = tojson  # Jinja's filter escapes HTML
        environment.globals.update(raise_exception=raise_exception, strftime_now=date.strftime)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise FolderError(f"chat template, line {getattr(error, 'lineno', '?')}: {error}") from None
        self._variables = variables
        self.marks_answers = re.search(r"\{%-?\s*generation\b", source) is not None

    def render(self, messages, tools=None, add_generation_prompt=False):
        """Returns the text; raises ValueError where the template refuses the messages."""
        try:
            return self._template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt,
                                         **self._variables)  # fmt: skip
        except Exception as error:  # a template raises what its expressions raise
            raise ValueError(f"the chat template refuses this conversation: {error}") from None


@dataclass
class Chat:
    """How conversations become tokens. `encode` returns the ids of a text and the end of each token in it, `decode` the text of ids.
    `special` maps the special tokens to their ids. `picture` is None where the folder has no pictures; `marker` then is an id that no
    text contains. `ends` are the ids at which programs that load the folder stop, and `quoted` the words in quotes of the template."""

    encode: object
    decode: object
    template: object
    special: dict
    marker: int
    vocabulary: int
    picture: PictureSize = None
    tokenizer_json: bytes = b""
    identity: int = 0
    ends: frozenset = frozenset()
    quoted: frozenset = frozenset()


def _text(path):
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FolderError(f"{path}: no such file", 66) from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path}: {error}") from None


def _json(path, default=None):
    if default is not None and not path.exists():
        return default
    text = _text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise FolderError(f"{path}: not a JSON object")
    return value


def _member(config, key, kind, path):
    """Returns a member of an object of the file `path`, or None where it is absent. Raises FolderError if it is of another kind."""
    value = config.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        kinds = {dict: "an object", int: "a whole number", str: "a string"}
        raise FolderError(f"{path}: {key} is {str(value)[:80]!r}; it must be {kinds[kind]}")
    return value


def _tokenizer(folder, config):
    """Returns the tokenizer of tokenizer.json with the added tokens of tokenizer_config.json, and its JSON text."""
    try:
        from tokenizers import AddedToken, Tokenizer
    except ImportError:
        raise FolderError(f"the folder's tokenizer needs the Python package tokenizers: {PACKAGES}", 69) from None
    path = folder / "tokenizer.json"
    if not path.exists():
        raise FolderError(f"{path}: no such file; if the folder has another form of tokenizer, write this one with transformers: "
                          f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained(...)", 66)  # fmt: skip
    try:
        text = path.read_bytes()
        tokenizer = Tokenizer.from_str(text.decode("utf-8"))
    except Exception as error:  # tokenizers raises plain Exception
        raise FolderError(f"{path}: {error}") from None
    for number, token, flags in _added_tokens(folder / "tokenizer_config.json", config):
        if tokenizer.token_to_id(token) is None:
            tokenizer.add_tokens([AddedToken(token, **flags)])
            text = None
        if tokenizer.token_to_id(token) != number:
            raise FolderError(f"{folder}: tokenizer_config.json gives {token!r} the id {number}, and tokenizer.json {tokenizer.token_to_id(token)}")
    text = text or tokenizer.to_str().encode("utf-8")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.post_processor = None  # it may trim white space off the offsets; what it adds is in the template
    return tokenizer, text


def _added_tokens(path, config):
    """Returns the added tokens of a tokenizer_config.json: id, text and flags."""
    found = []
    for number, token in (_member(config, "added_tokens_decoder", dict, path) or {}).items():
        name = f"added_tokens_decoder[{number!r}]"
        if not re.fullmatch("[0-9]{1,9}", number) or not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise FolderError(f'{path}: {name} must be an id with {{"content": TEXT}}')
        flags = {flag: token[flag] for flag in ("single_word", "lstrip", "rstrip", "normalized", "special") if flag in token}
        if not all(isinstance(value, bool) for value in flags.values()):
            raise FolderError(f"{path}: the flags of {name} must be true or false")
        found.append((int(number), token["content"], flags))
    return sorted(found, key=lambda item: item[0])


def _template_source(folder, config):
    """Returns the text of the chat template, from where transformers looks for it."""
    if (path := folder / "chat_template.jinja").exists():
        return _text(path)
    template = _json(folder / "chat_template.json", {}).get("chat_template") or config.get("chat_template")
    if isinstance(template, list):
        template = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}.get("default")
    if not isinstance(template, str):
        raise FolderError(f"{folder}: no chat template, neither chat_template.jinja nor in tokenizer_config.json; name one with --chat-template")
    return template


def _text_of(token):
    return token.get("content") if isinstance(token, dict) else token


def _variables(folder, config):
    """Returns the special tokens by name, for the template."""
    names = {**_json(folder / "special_tokens_map.json", {}), **config}
    extra = config.get("extra_special_tokens")
    found = {name: _text_of(names.get(name)) for name in NAMED_TOKENS}
    found.update({name: _text_of(token) for name, token in extra.items()} if isinstance(extra, dict) else {})
    return {name: text for name, text in found.items() if isinstance(text, str)}


def _ends(folder, model, tokenizer, variables):
    """Returns the ids at which an answer ends: of the first file that names any."""
    text_model = model.get("text_config")
    for config in (_json(folder / "generation_config.json", {}), model, text_model if isinstance(text_model, dict) else {}):
        ids = config.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [ids]
        if found := frozenset(number for number in ids if type(number) is int):
            return found
    number = tokenizer.token_to_id(variables.get("eos_token", ""))
    return frozenset() if number is None else frozenset([number])


def _picture_size(folder, limits):
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (path := folder / name).exists():
            config = _json(path)
            config = _member(config, "image_processor", dict, path) or config
            if "image_processor_type" not in config and "patch_size" not in config:
                continue  # a processor without pictures
            try:
                return PictureSize.of_config(config, *limits)
            except ValueError as error:
                raise FolderError(f"{path}: {error}") from None
    return None


def _marker(tokenizer, chosen, image, size, vocabulary, used):
    """Returns the id that stands for a picture, and whether it is one that the model knows as such. `used` are texts whose tokens do not
    qualify."""
    if chosen is not None:
        number = tokenizer.token_to_id(chosen)
        if number is None:
            raise FolderError(f"--marker {chosen}: the tokenizer has no such token")
        return number, True
    if image is not None:
        return image, True
    if vocabulary is None or size < vocabulary:
        return size, False  # the first id that pads the vocabulary
    unused = [number for number, token in tokenizer.get_added_tokens_decoder().items()
              if token.special and not any(token.content in text for text in used)]  # fmt: skip
    if not unused:
        raise FolderError("the vocabulary has no id to spare for the marker of pictures; name a token that no text contains with --marker")
    return max(unused), False


def read_chat(folder, *, template=None, template_variables=None, marker=None, limits=(None, None), date=None):
    """Reads a folder. `template` is the path of another chat template, `template_variables` its further variables, `marker` the text of
    the token that stands for a picture, and `limits` replaces the least and most pixels of a picture."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FolderError(f"{folder}: no such folder; it must be a Hugging Face model folder", 66)
    config, model = _json(folder / "tokenizer_config.json", {}), _json(folder / "config.json", {})
    tokenizer, tokenizer_json = _tokenizer(folder, config)
    source = _text(Path(template)) if template else _template_source(folder, config)
    variables = _variables(folder, config)
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    path = folder / "config.json"
    thinker = _member(model, "thinker_config", dict, path) or {}
    text_model = _member(model, "text_config", dict, path) or _member(thinker, "text_config", dict, path) or model
    vocabulary = _member(text_model, "vocab_size", int, path)
    vocabulary = _member(model, "vocab_size", int, path) if vocabulary is None else vocabulary
    image = _member(model, "image_token_id", int, path)
    if image is None:
        image = tokenizer.token_to_id(variables.get("image_token") or "<|image_pad|>")
    number, known = _marker(tokenizer, marker, image, size, vocabulary, [source, *variables.values()])
    vocabulary = max(size, number + 1) if vocabulary is None else vocabulary
    if not 0 <= number < vocabulary:
        raise FolderError(f"{folder}: the marker of pictures is token {number}, and config.json has a vocab_size of {vocabulary}")
    ends = _ends(folder, model, tokenizer, variables)
    special = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special or i in ends}
    if known and tokenizer.id_to_token(number) is not None:
        special[tokenizer.id_to_token(number)] = number
    picture = _picture_size(folder, limits) if known else None
    date = date or datetime.datetime.now()
    shown = date.strftime("%Y-%m-%d") if "strftime_now" in source else None
    settings = [source, variables, template_variables, number, vocabulary, vars(picture) if picture else None, shown, sorted(special.items())]

    def encode(text):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [end for _, end in encoding.offsets]

    def decode(ids):
        return tokenizer.decode(ids, skip_special_tokens=False)

    identity = Xxh64.of(np.frombuffer(tokenizer_json + json.dumps(settings).encode(), np.uint8))
    quoted = frozenset(word for _, word in re.findall(r"""(["'])(\w+)\1""", source))
    return Chat(encode, decode, ChatTemplate(source, {**variables, **(template_variables or {})}, date), special, number, vocabulary, picture,
                tokenizer_json, identity, ends, quoted)  # fmt: skip
