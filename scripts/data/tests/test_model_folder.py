"""The tool with folders as Hugging Face has them. What transformers does with the same folder is the reference where it is installed."""

import io
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import conversations
import numpy as np
import pytest
from conversation_tokens import tokens_of
from model_folder import FolderError, read_chat
from picture_size import PictureSize, read_picture
from PIL import Image, ImageOps
from sample_file import SampleError
from sample_reader import read_samples

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|spare|>"]
LINES = ["the cat sat on the mat and the dog sat on the cat", "what is this? a cat, a dog or a house?", "user\nassistant\nsystem\n\n\n"] * 4
VL = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.content is string %}{{- m.content }}{% else %}
{%- for part in m.content %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{% else %}{{- part.text }}{% endif %}
{%- endfor %}{% endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
# The parts of Qwen3's template that decide what is learned.
THINKING = """{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for m in messages[::-1] %}{%- set i = messages|length - 1 - loop.index0 %}{%- if m.role == 'user' %}{%- set ns.last = i %}
{%- break %}{%- endif %}{%- endfor %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) %}
{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{%- endif %}{{- m.content }}
{%- if m.tool_calls %}{%- for call in m.tool_calls %}{{- call | tojson }}{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"""
LLAMA = """{{- bos_token }}{% for m in messages %}{{- '<|im_start|>' + m['role'] + '<|im_end|>\n\n' + m['content'] | trim + eos_token }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_end|>\n\n' }}{% endif %}"""
MARKED = """{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}

{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}"""
PROCESSOR = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
             "size": {"shortest_edge": 256, "longest_edge": 4096}}  # fmt: skip


def turns(*texts):
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def tokenizer_json():
    tokenizers = pytest.importorskip("tokenizers", reason="the Python package tokenizers is not installed")
    pytest.importorskip("jinja2", reason="the Python package jinja2 is not installed")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\s*[\r\n]+| ?\p{L}+|\s+|[^\s\p{L}]+"), "isolated")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(LINES, tokenizers.trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer.to_str()


@pytest.fixture
def model(tmp_path, tokenizer_json):
    """A function that writes a model folder and returns its path."""

    def write(template=VL, config=None, processor=PROCESSOR, **tokenizer_config):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(tokenizer_json)
        names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}}
        (folder / "tokenizer_config.json").write_text(json.dumps({**names, **tokenizer_config}))
        (folder / "chat_template.jinja").write_text(template)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        (folder / "preprocessor_config.json").unlink(missing_ok=True)
        if processor:
            (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        return folder

    return write


def learned(messages, folder, tools=None, **options):
    """The texts of the runs of tokens that are learned."""
    chat = read_chat(folder, **options)
    ids, answers = tokens_of(messages, tools, chat)
    runs = re.findall("1+|0+", "".join(str(int(answer)) for answer in answers))
    found, at = [], 0
    for run in runs:
        found += [chat.decode(ids[at : at + len(run)])] * (run[0] == "1")
        at += len(run)
    return found


CONVERSATION = [{"role": "system", "content": "the mat"}, *turns("what is this?", "a cat", "näïve 🐱?", " \U0001f408 the dog\n\n x 🐱")]


def test_answers_are_learned_with_each_kind_of_template(model):
    for template in (VL, MARKED, LLAMA.replace("| trim", "")):
        assert learned(CONVERSATION, model(template)) == ["a cat<|im_end|>", " \U0001f408 the dog\n\n x 🐱<|im_end|>"], template
    folder = model(THINKING)
    assert learned(CONVERSATION, folder) == ["a cat<|im_end|>", "<think>\n\n</think>\n\n \U0001f408 the dog\n\n x 🐱<|im_end|>"]
    closed = {"template_variables": {"enable_thinking": False}}
    assert learned(turns("a", "b", "c", "d"), folder, **closed) == ["b<|im_end|>", "d<|im_end|>"]
    reasoned = [*turns("the", "b", "c"), {"role": "assistant", "content": "d", "reasoning_content": "the cat"}]
    assert learned(reasoned, folder)[1] == "<think>\nthe cat\n</think>\n\nd<|im_end|>"
    assert learned([*reasoned, *turns("the")], folder) == ["b<|im_end|>", "d<|im_end|>"]  # that of earlier answers is left out by design
    last = VL.replace("{{- m.content }}", "{{- m.content.split('</think>')[-1] }}")
    for template, more in ((VL, {"thinking": "the cat"}), (VL, {"reasoning": "the cat"}), (last, {"content": "<think>the cat</think>d"})):
        with pytest.raises(SampleError, match=r"messages\[3\]: the chat template does not show its reasoning"):
            learned([*turns("the", "b", "c"), {"role": "assistant", "content": "d", **more}], model(template))
    assert learned(turns("the", "<think>\n\n</think>d"), model(last)) == ["d<|im_end|>"]
    with pytest.raises(SampleError, match=r"messages\[1\]: its reasoning .* must be a string"):
        learned([*turns("the"), {"role": "assistant", "content": "d", "thinking": ["a"]}], folder)


def test_calls_of_tools_are_learned_and_their_results_are_not(model):
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {"at": "mat"}}]}
    messages = [*turns("the mat?"), call, {"role": "tool", "content": "a cat"}, {"role": "assistant", "content": "cat"}]
    found = learned(messages, model(THINKING), tools=[{"name": "look"}])
    assert found[0].endswith('{"name": "look", "arguments": {"at": "mat"}}<|im_end|>') and found[1].endswith("cat<|im_end|>")
    assert len(found) == 2


# How templates take arguments: as objects, as JSON text, and what they want for no content.
FORMS = [("{{ m.content }}{{ c.arguments | tojson }}", '{"at": null}'), ("{{ m.content }}{{ '' + c.arguments }}", '{"at":null}'),
         ("{{ m.content }}{{ c.arguments }}", '{"at":null}'), ("{{ '' + m.content }}{{ c.arguments | tojson }}", '{"at": null}'),
         ("{% if m.content is none %}{{ c.arguments | tojson }}{% else %}{{ raise_exception('calls beside text') }}{% endif %}", '{"at": null}')]  # fmt: skip
SAYS_AS_PYTHON = 'call look with {\'at\': None} or "{\\"at\\":null}"'


@pytest.mark.parametrize("shown, text", FORMS)
def test_calls_are_given_in_the_form_that_the_template_shows(model, shown, text):
    """Arguments as JSON text, as OpenAI's API has them, and null."""
    template = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}{{ c.name }} "
                + shown + "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")  # fmt: skip
    folder = model(template)
    for content in ({"content": None}, {}):
        call = {"role": "assistant", **content, "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": '{"at":null}'}}]}
        for question in ("the mat?", SAYS_AS_PYTHON):
            assert learned([*turns(question), call, {"role": "tool", "content": "a cat"}], folder) == [f"look {text}<|im_end|>"]


@pytest.mark.parametrize("shown, message", [("{{ c.arguments }}{{ c.arguments | tojson }}", r"messages\[1\].tool_calls: .* as Python does, {'at': None}"),
                                            ("{{ '' + c.arguments }}{{ c.arguments | tojson }}", "refuses this conversation")])  # fmt: skip
def test_arguments_that_no_form_shows_as_json_are_refused(model, shown, message):
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {"at": None}}]}
    template = VL.replace("{{- '<|im_end|>", "{% for c in m.tool_calls or [] %}{{ c.name }}" + shown + "{% endfor %}{{- '<|im_end|>")
    with pytest.raises(SampleError, match=message):
        learned([*turns("the mat?"), call], model(template))


def test_no_value_ends_a_conversation_with_a_traceback(model, tmp_path):
    """Every part of a conversation by values that do not belong there."""
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    look = {"function": {"name": "look", "arguments": '{"at": null}'}}
    row = {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "image"}, {"type": "text", "text": "q"}]},
                        {"role": "assistant", "content": "a", "tool_calls": [look], "weight": 0}, {"role": "tool", "content": "r"},
                        {"from": "gpt", "value": "b", "reasoning": "c"}],
           "images": ["a.png"], "tools": [look], "system": ""}  # fmt: skip

    def changed(value, others):
        yield from others
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            for item in changed(value[key], others):
                yield {**value, key: item} if isinstance(value, dict) else [*value[:key], item, *value[key + 1 :]]

    others = [None, True, -1, 0.5, float("nan"), 10**30, "", "x", "\ud800", "\0", ".", "{", "zq7w99w7qz", [], [None], {}, {"": ""}, {"a": [None]}]
    more = "{{- m.reasoning_content or '' }}{{- (m.tool_calls or '') | string + '<|im_end|>"
    template = VL.replace("{{- '<|im_end|>", more).replace("{%- for m", "{{- tools or '' }}{%- for m", 1)
    chat, made, refused = read_chat(model(template)), 0, 0
    conversations.sample_of(row, tmp_path, chat)
    for each in changed(row, others):
        try:
            conversations.sample_of(each, tmp_path, chat)
            made += 1
        except SampleError:
            refused += 1
    assert made > 50 and refused > 300


def test_tokens_that_cross_a_boundary_are_refused(model):
    with pytest.raises(SampleError, match=r"messages\[1\]: its first characters merge .* remove white space"):
        learned(turns("a", "\n\nb"), model())


@pytest.mark.parametrize("template", [VL, THINKING, LLAMA, MARKED], ids=["vl", "thinking", "llama", "marked"])
def test_tokens_and_marks_are_those_of_transformers(model, template):
    transformers = pytest.importorskip("transformers", reason="the Python package transformers is not installed")
    folder = model(template, extra_special_tokens={"image_token": "<|image_pad|>"})
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    call = {"role": "assistant", "content": None, "name": None, "tool_calls": [{"name": "look", "arguments": {"at": None, "x": [None, 1.5]}}]}
    called = [*turns("the mat?"), call, {"role": "tool", "content": "a cat"}, {"role": "assistant", "content": "cat", "reasoning": "hm"}]
    for messages in (CONVERSATION, turns("the cat", "sat"), turns("a", "b", "c", "d\n", "e"), *[called] * (template == THINKING)):
        if template == MARKED:
            messages = [{**m, "content": m["content"].strip()} for m in messages]
        ids, answers = tokens_of(messages, None, read_chat(folder))
        marked = reference.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=template == MARKED)
        assert ids == marked["input_ids"]
        if template == MARKED:
            assert [int(answer) for answer in answers] == marked["assistant_masks"]


def test_pixels_are_those_of_transformers(tmp_path):
    pytest.importorskip("transformers", reason="the Python package transformers is not installed")
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as reference

    size = PictureSize.of_config(PROCESSOR)
    processor = reference.Qwen2VLImageProcessorPil(**{k: v for k, v in PROCESSOR.items() if k != "image_processor_type"})
    random = np.random.default_rng(3)
    for height, width in ((40, 56), (9, 100), (3, 5), (200, 120)):
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(tmp_path / "a.png")
        pixels = size.load(tmp_path / "a.png", "a.png")
        with Image.open(tmp_path / "a.png") as image:
            found = processor(image, return_tensors="np")
        h, w = (side // 4 for side in pixels.shape[:2])
        assert found["image_grid_thw"].tolist() == [[1, h, w]]
        blocks = (pixels / 127.5 - 1).reshape(h // 2, 2, 4, w // 2, 2, 4, 3).transpose(0, 3, 1, 4, 6, 2, 5).reshape(h * w, 3, 1, 16)
        assert np.abs(np.repeat(blocks, 2, axis=2).reshape(h * w, -1) - found["pixel_values"]).max() < 1e-5
    for height, width in random.integers(8, 3000, (300, 2)).tolist():
        if max(height, width) < 200 * min(height, width):
            wide = PictureSize(16, 2, 65536, 1 << 20)
            assert wide.resized(height, width) == reference.smart_resize(height, width, 32, 65536, 1 << 20)


def test_sizes_of_pictures_by_hand():
    size = PictureSize(16, 2, 65536, 1 << 20)
    assert size.resized(480, 640) == (480, 640)
    assert size.resized(496, 528) == (512, 512)  # 15.5 and 16.5 blocks of 32: halves round to even
    assert size.resized(100, 100) == (256, 256)
    assert size.resized(3000, 2000) == (1248, 832)  # sqrt(6e6 / 2^20) = 2.392: 1254 and 836
    assert size.tokens_of(480, 640) == 15 * 20
    with pytest.raises(SampleError, match="more than 200 times"):
        size.resized(1, 201)
    with pytest.raises(SampleError, match="4128 x 32 pixels after scaling; at most 4096 .* --max-pixels"):
        PictureSize(16, 2, 1024, 1 << 20).resized(32, 4128)


@pytest.mark.parametrize("entry", [None, (0x11A, 10, struct.pack("<I", 38)), (0x128, 11, struct.pack("<f", 2)), (0x8769, 11, struct.pack("<f", 8))])
def test_pictures_are_upright_whatever_else_their_exif_has(tmp_path, entry):
    """JPEGs with each orientation and entries of odd types: what Pillow's exif_transpose makes of the orientation alone."""
    plain = io.BytesIO()
    Image.fromarray(np.add.outer(np.arange(16) * 3, np.arange(8) * 9).astype(np.uint8)).convert("RGB").save(plain, "jpeg")
    for orientation in range(1, 9):
        image = Image.open(plain)
        exif = Image.Exif()
        exif[0x112] = orientation
        image.save(tmp_path / "a.jpg", exif=exif, quality=95)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "a.jpg")))
        if entry:
            data = (tmp_path / "a.jpg").read_bytes()
            at = data.index(b"Exif\0\0")
            entries = b"".join(struct.pack("<HHI4s", tag, kind, 1, value) for tag, kind, value in ((0x112, 3, bytes([orientation, 0, 0, 0])), entry))
            tiff = b"II*\0" + struct.pack("<IH", 8, 2) + entries + struct.pack("<Iii", 0, -1, 0)
            old = int.from_bytes(data[at - 2 : at], "big")
            (tmp_path / "a.jpg").write_bytes(data[: at - 2] + struct.pack(">H", len(tiff) + 8) + b"Exif\0\0" + tiff + data[at - 2 + old :])
        found = np.asarray(read_picture(tmp_path / "a.jpg", "a.jpg", "RGB"))
        assert np.array_equal(found, expected), orientation
    (tmp_path / "a.dds").write_bytes(b"DDS " + struct.pack("<7I", 124, 0x1007, 4, 4, 0, 0, 0) + bytes(44) + struct.pack("<8I", 32, 4, 7, 0, 0, 0, 0, 0) + bytes(99))
    with pytest.raises(SampleError, match="a.dds: not a picture, or damaged"):
        read_picture(tmp_path / "a.dds", "a.dds", "RGB")


@pytest.mark.parametrize("kind, name", [("uint16", "a.png"), ("uint16", "a.tif"), ("int32", "a.tif"), ("float32", "a.tif")])
def test_pictures_of_more_than_8_bits_are_refused(tmp_path, kind, name):
    Image.fromarray(np.full((4, 4), 3, kind)).save(tmp_path / name)
    with pytest.raises(SampleError, match=f"^{name}: has 16-bit or float pixels; convert it to 8 bits$"):
        read_picture(tmp_path / name, name, "RGB")


@pytest.mark.parametrize("change, message", [
    ({"image_processor_type": "CLIPImageProcessor"}, "'CLIPImageProcessor' is not supported"),
    ({"image_mean": [0.48, 0.46, 0.41]}, "image_mean .* is not supported"),
    ({"do_resize": False}, "do_resize False"),
    ({"patch_size": 0}, "must be positive"),
    ({"min_pixels": 1 << 30}, "in this order"),
    ({"size": 448}, "size 448 is not supported"),
])  # fmt: skip
def test_other_image_processors_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        PictureSize.of_config({**PROCESSOR, **change})
    assert PictureSize.of_config(PROCESSOR, most=1024).most == 1024


def test_marker_and_vocabulary(model):
    """SPECIAL and two more tokens end the vocabulary: <|image_pad|> is 4 before the last, <|spare|> 3."""
    size = 280 + len(SPECIAL) + 2
    assert (read_chat(model()).marker, read_chat(model()).vocabulary) == (size - 4, size)
    padded = read_chat(model(config={"text_config": {"vocab_size": 512}, "image_token_id": size - 4}))
    assert (padded.marker, padded.vocabulary) == (size - 4, 512) and padded.picture == PictureSize(4, 2, 256, 4096)
    assert read_chat(model(), marker="<|spare|>").marker == size - 3
    with pytest.raises(FolderError, match="no such token"):
        read_chat(model(), marker="<|none|>")
    with pytest.raises(FolderError, match="vocab_size of 20"):
        read_chat(model(config={"vocab_size": 20}))


def test_marker_of_a_model_of_text(model, tokenizer_json):
    size = 280 + len(SPECIAL) + 2
    folder = model(config={"vocab_size": size}, processor=None)
    (folder / "tokenizer.json").write_text(tokenizer_json.replace("<|image_pad|>", "<|reserved|>"))
    text = read_chat(folder)
    assert (text.marker, text.vocabulary, text.picture) == (size - 3, size, None)  # the last special token that nothing uses
    (folder / "config.json").write_text(json.dumps({"vocab_size": 512}))
    assert read_chat(folder).marker == size  # the first id that pads the vocabulary
    (folder / "config.json").unlink()
    assert (read_chat(folder).marker, read_chat(folder).vocabulary) == (size, size + 1)


def test_incomplete_folders_are_refused(model):
    folder = model()
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(FolderError, match="chat template, line 1"):
        read_chat(folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(FolderError, match="no chat template"):
        read_chat(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "default", "template": VL}]}))
    assert learned(turns("a", "b"), folder) == ["b<|im_end|>"]
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(FolderError, match="tokenizer.json: "):
        read_chat(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FolderError, match="AutoTokenizer") as missing:
        read_chat(folder)
    assert missing.value.code == 66


@pytest.mark.parametrize("name, value, message", [
    ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder is '[1]'; it must be an object"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder['x'] must be an id"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"1": {"special": True}}}, "added_tokens_decoder['1'] must be an id"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"1": {"content": "a", "special": "no"}}}, "the flags of added_tokens_decoder['1']"),
    ("config.json", {"image_token_id": "<|image_pad|>"}, "image_token_id is '<|image_pad|>'; it must be a whole number"),
    ("config.json", {"text_config": ["a"]}, "text_config is \"['a']\"; it must be an object"),
    ("config.json", {"thinker_config": 1}, "thinker_config is '1'; it must be an object"),
    ("config.json", {"text_config": {"vocab_size": "512"}}, "vocab_size is '512'; it must be a whole number"),
    ("preprocessor_config.json", {"image_processor": 3}, "image_processor is '3'; it must be an object"),
    ("preprocessor_config.json", {**PROCESSOR, "size": 448}, "size 448 is not supported"),
    ("chat_template.jinja", b"\xe9", "can't decode byte 0xe9"),
    ("config.json", b"\xe9", "can't decode byte 0xe9"),
])  # fmt: skip
def test_files_of_a_folder_with_odd_values_are_named(model, name, value, message):
    folder = model()
    (folder / name).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    with pytest.raises(FolderError, match=re.escape(f"{folder / name}: ") + ".*" + re.escape(message)):
        read_chat(folder)
    if name == "chat_template.jinja":
        with pytest.raises(FolderError, match=re.escape(message)):
            read_chat(folder, template=folder / name)


def test_added_tokens_of_the_configuration(model):
    size = 280 + len(SPECIAL) + 2
    chat = read_chat(model(added_tokens_decoder={str(size): {"content": "<|new|>", "special": True}}))
    assert chat.special["<|new|>"] == size and b"<|new|>" in chat.tokenizer_json and chat.vocabulary == size + 1
    with pytest.raises(FolderError, match="gives '<|new|>' the id 7"):
        read_chat(model(added_tokens_decoder={"7": {"content": "<|new|>"}}))


def test_a_continued_run_keeps_its_date(model, tmp_path):
    folder = model(MARKED, processor=None)
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": turns("a", "b")}) + "\n{")
    arguments = [str(folder), "--input", str(tmp_path / "c.jsonl"), "--output", str(tmp_path / "c.h5"), "--workers", "1"]
    with pytest.raises(SystemExit):
        conversations.main([*arguments, "--date", "2020-02-29"])
    conversations.main([*arguments, "--skip-errors"])
    (sample,) = read_samples(tmp_path / "c.h5")
    assert read_chat(folder).decode(list(sample.tokens)).endswith("29 Feb 2020")


def test_parquet_gives_what_jsonl_gives(model, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the Python package pyarrow is not installed")
    import pyarrow.parquet

    folder, data = model(), io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(data, "png")
    (tmp_path / "a.png").write_bytes(data.getvalue())

    def rows(picture):
        look = {"messages": [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "?"}]},
                             {"role": "assistant", "content": [{"type": "text", "text": "cat"}]}]}  # fmt: skip
        return [look] + [{"messages": [{"role": r, "content": [{"type": "text", "text": f"{r} {n}"}]} for r in ("user", "assistant")]}
                         for n in range(20)]  # fmt: skip

    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows("a.png"))))
    for name, picture in (("bytes", data.getvalue()), ("struct", {"bytes": data.getvalue(), "path": None}), ("path", "a.png")):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(picture)), tmp_path / f"{name}.parquet", row_group_size=8)
    made = {}
    for name in ("c.jsonl", "bytes.parquet", "struct.parquet", "path.parquet"):
        conversations.main([str(folder), "--input", str(tmp_path / name), "--output", str(tmp_path / "c.h5"), "--workers", "2"])
        made[name] = (tmp_path / "c.h5").read_bytes()
    assert len(set(made.values())) == 1
    whole = bytearray((tmp_path / "bytes.parquet").read_bytes())
    whole[4:400] = bytes(396)
    for damaged in (whole, whole[:-20]):
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        with pytest.raises(SystemExit) as ended:
            conversations.main([str(folder), "--input", str(tmp_path / "damaged.parquet"), "--output", str(tmp_path / "d.h5")])
        assert ended.value.code == 65 and not (tmp_path / "d.h5").exists()


def test_the_command_of_the_documentation(model, tmp_path):
    """docs/file_formats.md: its conversations by its command."""
    root = Path(__file__).resolve().parents[3]
    text = (root / "docs/file_formats.md").read_text(encoding="utf-8").split("### Conversations")[1].split("\n## ")[0]
    (objects,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"```\n(scripts/data/conversations.py .*?)```", text, re.DOTALL)
    lines = [json.dumps(json.loads(item)) for item in re.split(r"\n(?=\{)", objects)]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    Image.new("RGB", (64, 48)).save(tmp_path / "cat.png")
    words = command.replace("\\\n", " ").split()
    words[0], words[1] = str(root / words[0]), str(model())
    made = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    counts = [int(n) for n in re.findall(r"h5: (\d+) conversations", made.stdout)]
    assert sum(counts) == len(lines) == 3 and "100%" in made.stderr


def test_says_which_packages_are_missing(tmp_path, capsys, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SystemExit) as ended:
        conversations.main([str(tmp_path), "--input", "c.jsonl", "--output", str(tmp_path / "c.h5")])
    assert ended.value.code == 69 and "/usr/bin/python3 -m pip install --target build/python tokenizers jinja2" in capsys.readouterr().err
