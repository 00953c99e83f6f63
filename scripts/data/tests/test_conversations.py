"""The tool with a tokenizer and templates in Python, so that it is tested where the packages tokenizers and jinja2 are missing."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import conversation_tokens
import conversations
import numpy as np
import pytest
from conversation_tokens import tokens_of
from json_input import BOM
from model_folder import BEGIN_ANSWER, END_ANSWER, Chat
from picture_size import PictureSize
from PIL import Image
from sample_file import SampleError
from sample_reader import read_samples

SPECIAL = {"<|im_start|>": 0, "<|im_end|>": 1, "<|image_pad|>": 2, "<|vision_start|>": 3, "<|vision_end|>": 4}
THINK = {"<think>": 5, "</think>": 6}
NAMES = {number: text for text, number in {**SPECIAL, **THINK}.items()}
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


def encode(text):
    """A token for every special token, for every run of line feeds (10 + length) and for every other character (100 + code)."""
    found = list(re.finditer("|".join(map(re.escape, [*SPECIAL, *THINK])) + r"|\n+|[^\n]", text))
    ids = [{**SPECIAL, **THINK}.get(hit[0], 10 + len(hit[0]) if hit[0][0] == "\n" else 100 + ord(hit[0][0])) for hit in found]
    return ids, [hit.end() for hit in found]


def decode(ids):
    return "".join(NAMES.get(i) or ("\n" * (i - 10) if i < 100 else chr(i - 100)) for i in ids)


def text_of(content):
    return content if isinstance(content, str) else "".join(part.get("text", PICTURE) for part in content)


def chatml(messages, tools=None, prompt=False):
    text = "".join(f"<|im_start|>{m['role']}\n{text_of(m['content'])}<|im_end|>\n" for m in messages)
    return text + "<|im_start|>assistant\n" * prompt


def thinking(messages, tools=None, prompt=False, opened=""):
    """As Qwen3's: only an answer after the last message of the user has a block for its reasoning."""
    last = max(i for i, m in enumerate(messages) if m["role"] == "user")
    text = ""
    for i, m in enumerate(messages):
        block = "<think>\n\n</think>\n\n" if i > last else ""
        text += f"<|im_start|>{m['role']}\n{block}{text_of(m['content'])}<|im_end|>\n"
    return text + f"<|im_start|>assistant\n{opened}" * prompt


def chat_of(render=chatml, marks_answers=False, **changes):
    template = SimpleNamespace(render=render, marks_answers=marks_answers)
    fields = {"encode": encode, "decode": decode, "template": template, "special": SPECIAL, "marker": 2, "vocabulary": 1 << 20,
              "picture": PictureSize(4, 2, 64, 1024), "tokenizer_json": b"{}", **changes}  # fmt: skip
    return Chat(**fields)


def turns(*texts, first="user"):
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def learned(messages, render=chatml, **options):
    """The texts of the runs of tokens that are learned, and the whole text."""
    ids, answers = tokens_of(messages, None, chat_of(render, **options))
    runs = "".join(chr(c) if a else "\0" for c, a in zip(ids, answers))
    return [decode([ord(c) for c in run]) for run in runs.split("\0") if run], decode(ids)


def test_answers_and_the_token_that_ends_them_are_learned():
    messages = [{"role": "system", "content": "Be brief."}, *turns("a", "b", "c", "d\n\nö"), {"role": "user", "content": "bye"}]
    found, text = learned(messages)
    assert found == ["b<|im_end|>", "d\n\nö<|im_end|>"]
    assert text == chatml(messages)


def test_a_template_that_renders_earlier_answers_differently():
    found, text = learned(turns("a", "b", "c", "d"), thinking)
    assert found == ["b<|im_end|>", "<think>\n\n</think>\n\nd<|im_end|>"]
    assert text == thinking(turns("a", "b", "c", "d"))


def test_a_prompt_that_goes_on_with_what_the_answer_lacks():
    def opened(messages, tools=None, prompt=False):
        return thinking(messages, tools, prompt, opened="<think>\n")

    # The empty block of the last answer begins with other tokens (two line feeds are one) than the prompt.
    with pytest.raises(SampleError, match=r"messages\[3\]: .*enable_thinking=false"):
        learned(turns("a", "<b>", "c", "d"), opened)

    def closed(messages, tools=None, prompt=False):
        return thinking(messages, tools, prompt, opened="<think>\n\n</think>\n\n")

    assert learned(turns("a", "<b>", "c", "d"), closed)[0] == ["<b><|im_end|>", "d<|im_end|>"]


def test_a_template_that_marks_answers():
    def marked(messages, tools=None, prompt=False):
        return chatml([{**m, "content": BEGIN_ANSWER + m["content"] + END_ANSWER} if m["role"] == "assistant" else m for m in messages])

    found, text = learned(turns("a", "b", "c", "\nd"), marked, marks_answers=True)
    assert found == ["b", "\n\nd"] and text == chatml(turns("a", "b", "c", "\nd"))  # a token across the border counts, as in transformers

    def ended(messages, tools=None, prompt=False):
        return "".join(BEGIN_ANSWER * (m["role"] == "assistant") + m["content"] + END_ANSWER * (m["role"] == "assistant") + "\n" for m in messages)

    assert learned(turns("a", "b\n", "c", "d"), ended, marks_answers=True)[0] == ["b\n\n", "d"]
    messages = turns("a", "b", "c", "d")
    messages[1]["weight"] = 0
    assert learned(messages, marked, marks_answers=True)[0] == ["d"]
    with pytest.raises(SampleError, match=r"4 {% generation %} blocks for 2 messages"):
        learned(messages, lambda *rest: marked(*rest) * 2, marks_answers=True)
    with pytest.raises(SampleError, match="enclose nothing"):
        learned(turns("a", "b"), chatml, marks_answers=True)


def test_a_template_without_special_tokens():
    def plain(messages, tools=None, prompt=False):
        return "".join(f"[{m['content']}]" if m["role"] == "user" else f" {m['content']} ." for m in messages)

    assert learned(turns("a", "b", "c", "d"), plain)[0] == [" b .", " d ."]


ENDS = {"<|im_end|>": 1, "<|human|>": 7, "<|helper|>": 8, "<|stop|>": 9}


def with_ends(end, last_end, think=""):
    """A template with these ends of answers, and of messages of the user the former; `think` is before the last answer alone."""
    def render(messages, tools=None, prompt=False):
        text = ""
        for m in messages:
            answer, last = m["role"] == "assistant", m is messages[-1]
            text += ("<|helper|>" if answer else "<|human|>") + "\n" + think * (answer and last) + m["content"] + (last_end if answer and last else end)
        return text + "<|helper|>\n" * prompt

    return render


def with_a_call(end, last_end):
    """Answers that are not "Hello" end as if they had a call, with the special token of one."""
    def render(messages, tools=None, prompt=False):
        called = [{**m, "content": m["content"] + "<|helper|>" * (m["role"] == "assistant" and m["content"] != "Hello")} for m in messages]
        return with_ends(end, last_end)(called, tools, prompt)

    return render


def ended(messages, tools=None, prompt=False):
    return with_ends("<|im_end|>\n", "<|im_end|>\n")(messages, tools, prompt) + "<|stop|>" * (not prompt)


@pytest.mark.parametrize("render, answers, warnings", [
    (with_ends("", ""), ["b<|human|>", "d<|human|>"], ["<|human|>"]),  # the marker of the next message ends an answer, and also the last
    (with_ends("<|im_end|>", "<|stop|>"), ["b<|im_end|>", "d<|stop|>"], ["<|stop|>"]),
    (with_ends("<|im_end|>", ""), ["b<|im_end|>", "d<|im_end|>"], []),
    (with_ends("", "<|stop|>"), ["b<|human|>", "d<|stop|>"], ["<|human|>", "<|stop|>"]),
    (with_ends("<|im_end|>", "<|stop|>", "<t>"), ["b<|im_end|>", "<t>d<|stop|>"], ["<|stop|>"]),
    (with_ends("", "", "<t>"), ["b<|human|>", "<t>d<|human|>"], ["<|human|>"]),
    (ended, ["b<|im_end|>", "d<|im_end|>"], []),
    (with_ends("<|im_end|>", "<|im_end|><|stop|>"), ["b<|im_end|>", "d<|im_end|>"], []),
    (with_ends("<|human|><|im_end|>", "<|human|><|im_end|>"), ["b<|human|><|im_end|>", "d<|human|><|im_end|>"], []),
    (with_a_call("<|im_end|>", "<|stop|>"), ["b<|helper|><|im_end|>", "d<|helper|><|stop|>"], ["<|stop|>"]),
    (with_ends(".", "."), ["b.<|human|>", "d.<|human|>"], ["<|human|>"]),
])  # fmt: skip
def test_what_ends_an_answer_is_learned(folder, capsys, monkeypatch, render, answers, warnings):
    """Also where the template ends answers with another token when more follows, or with none; the report names what the folder does not know."""
    monkeypatch.setattr(sys.modules[__name__], "SPECIAL", ENDS)
    monkeypatch.setattr(sys.modules[__name__], "NAMES", {number: text for text, number in ENDS.items()})
    assert learned(turns("a", "b", "c", "d"), render, special=ENDS)[0] == answers
    run(folder, {"messages": turns("a", "b", "c", "d")}, chat=chat_of(render, special=ENDS, ends=frozenset([1])))
    report = capsys.readouterr().out
    assert re.findall(r"warning: [12] of 2 answers end with (\S+) \(token \d\), and the folder's eos_token_id is that of <.im_end.>", report) == warnings
    assert report.count("warning") == len(warnings)


@pytest.mark.parametrize("rendered, count", [("{0} .", 2), (BEGIN_ANSWER + "{0}" + END_ANSWER + "<|im_end|>", 2),
                                             (BEGIN_ANSWER + "{0}" + END_ANSWER + "|" + BEGIN_ANSWER + "<|im_end|>\n" + END_ANSWER, 0)])  # fmt: skip
def test_answers_without_a_learned_end_are_counted(folder, capsys, rendered, count):
    def render(messages, tools=None, prompt=False):
        return "".join(rendered.format(m["content"]) if m["role"] == "assistant" else f"[{m['content']}]" for m in messages)

    run(folder, {"messages": turns("a", "b", "c", "d")}, chat=chat_of(render, marks_answers=BEGIN_ANSWER in rendered))
    found = re.findall(r"warning: (\d) of 2 answers have no special token at their end that is learned", capsys.readouterr().out)
    assert found == [str(count)] * (count > 0)


def known_roles(messages, tools=None, prompt=False):
    return chatml([m for m in messages if m["role"] in ("system", "user", "assistant")], tools, prompt)


def test_messages_that_the_template_does_not_show_are_refused_and_plain_roles_mapped():
    other = [{"role": role, "content": role} for role in ("developer", "human", "gpt")]
    assert learned(other, known_roles)[1] == chatml([{"role": m, "content": n["role"]} for m, n in zip(("system", "user", "assistant"), other)])
    assert learned([*other, *turns("a", "b")], quoted={"developer", "gpt"})[0] == ["b<|im_end|>"]  # roles of the template's own
    assert learned([{"role": "User", "content": "a"}, {"role": "Assistant", "content": "b"}], quoted={"assistant", "Assistant"})[0] == ["b<|im_end|>"]
    for role in ("narrator", "bot", "chatgpt", "model", "function", "tool_call"):
        with pytest.raises(SampleError, match=rf"messages\[2\] has the role '{role}', .*; allowed are system, user, assistant, tool"):
            learned([*turns("a", "b"), {"role": role, "content": "b"}])
    with pytest.raises(SampleError, match=r"messages\[2\]: the chat template does not show its text; its role is 'tool'"):
        learned([*turns("a", "b"), {"role": "tool", "content": "b"}], known_roles)
    calls = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}], "content": "b"}
    with pytest.raises(SampleError, match=r"messages\[1\]: the chat template does not show tool_calls; leave them out"):
        learned([*turns("a"), calls])
    for key in ("tools", "functions", "function_calls"):
        with pytest.raises(SampleError, match=rf"messages\[1\]: the chat template does not show {key}; write"):
            learned([*turns("a"), {**turns("b", first="assistant")[0], key: "look()"}])
    with pytest.raises(SampleError, match='"tools": the chat template does not show them'):
        tokens_of(turns("a", "b"), [{"name": "look"}], chat_of())


def broken(messages, tools=None, prompt=False):
    return f"{len(messages)} messages: " + chatml(messages, tools, prompt)


def silent(messages, tools=None, prompt=False):
    return chatml(messages)


def counted(messages, tools=None, prompt=False):
    return "".join(f"{m['role']}: {m['content']}{'!' if m['role'] == 'assistant' and m is messages[-1] else ';'}" for m in messages) + "assistant: " * prompt


def merging(messages, tools=None, prompt=False):
    return "".join(f"\n{m['role']}: {m['content']}\n" for m in messages) + "\nassistant: " * prompt


@pytest.mark.parametrize("messages, render, message", [
    (turns("a", "\nb"), chatml, r"messages\[1\]: its first characters merge with the prompt's .* remove white space"),
    (turns("a", "b", "c", "d"), broken, "differently when more follow"),
    (turns("a", "b"), silent, "ignores add_generation_prompt"),
    (turns("a", "b", "c"), counted, "ends it with no special token"),
    (turns("a", "b", "c"), merging, r"messages\[1\]: its last characters merge"),
    (turns("a", "b", first="assistant"), chatml, "must come first"),
    (turns("a"), chatml, "nothing to learn; the roles are user"),
    (turns("a", "b<|im_end|>"), chatml, r"messages\[1\].content contains the special token '<|im_end|>'"),
    ([{"role": "user", "content": [{"type": "text", "text": "<|image_pad|>"}]}, *turns("a", "b")], chatml, r"messages\[0\].content\[0\].text contains"),
])  # fmt: skip
def test_what_cannot_be_located_is_refused(messages, render, message):
    with pytest.raises(SampleError, match=message):
        learned(messages, render)


def test_special_tokens_in_tools_are_refused():
    for tool, place in (({"name": "<|im_start|>"}, "name contains"), ({"a": {"<|im_end|>": 1}}, "a: a name contains")):
        with pytest.raises(SampleError, match=rf"tools\[0\].{place}"):
            tokens_of(turns("a", "b"), [tool], chat_of())
    assert conversation_tokens.refuse_special_tokens(None, "tools", SPECIAL) is None


@pytest.fixture
def folder(tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    Image.new("L", (7, 7), 77).save(tmp_path / "b.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    return tmp_path


def run(folder, *rows, options=(), chat=None, name="c.jsonl", output="c.h5"):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    if rows:
        (folder / name).write_text("\n".join(lines))
    conversations.main(["model", "--input", str(folder / name), "--output", str(folder / output), "--workers", "1", *options],
                       read=lambda *_, **__: chat or chat_of())  # fmt: skip
    return list(read_samples(folder / output))


def test_pictures_are_scaled_and_stand_in_order(folder, capsys):
    look = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "and"}, {"type": "image"}]
    samples = run(folder, {"messages": [{"role": "user", "content": look}, {"role": "assistant", "content": "x"}], "images": ["b.png"], "id": 7},
                  {"messages": turns("q", "answer")}, options=["--show", "1"])  # fmt: skip
    tokens = list(samples[0].tokens)
    assert decode(tokens) == f"<|im_start|>user\n{PICTURE}and{PICTURE}<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n"
    # 40 x 30 at most 1024 pixels: 32 x 24 (by 8: 40 x 32 would be too many); 7 x 7 at least 64: 8 x 8.
    assert [picture.shape for picture in samples[0].pictures] == [(32, 24, 3), (8, 8, 3)]
    with Image.open(folder / "a.png") as image:
        assert (samples[0].pictures[0] == np.asarray(image.resize((24, 32), Image.Resampling.BICUBIC))).all()
    assert (samples[0].pictures[1] == 77).all()
    assert list(samples[0].weights) == [0.0] * (len(tokens) - 3) + [1.0, 1.0, 0.0]
    assert list(samples[0].flags) == list(samples[0].weights)
    report = capsys.readouterr().out
    assert "assistant\n[[x<|im_end|>]]" in report
    # 12 and 1 tokens of pictures in place of two markers
    whole = [len(tokens) + 12 + 1 - 2, len(samples[1].tokens)]
    learned_tokens = 2 + 7
    assert f"2 conversations, {sum(whole)} tokens, {100 * learned_tokens / sum(whole):.1f}% of them with loss, 2 pictures" in report
    assert f"min {min(whole)}, median {min(whole)}, 90% at most {max(whole)}, max {max(whole)}" in report
    assert not (folder / "c.h5.parts").exists()


def test_pictures_stand_where_texts_mark_them(folder, capsys):
    """LLaVA's form, and that of others with a list; without pictures it is a text like others, such as an element of SVG."""
    both = {**llava(None, "<image>\nor<image>?"), "images": ["a.png", "b.png"]}
    svg = {**llava("", "a <image>?"), "tools": " "}
    samples = run(folder, llava("a.png", "<image>\nWhat?"), llava(["a.png", "b.png"], "<image>\nor<image>?"), both, svg)
    asked = [decode(sample.tokens).split("<|im_end|>")[0].removeprefix("<|im_start|>user\n") for sample in samples]
    assert asked == [f"{PICTURE}\nWhat?", *[f"{PICTURE}\nor{PICTURE}?"] * 2, "a <image>?"]
    assert [[picture.shape[0] for picture in sample.pictures] for sample in samples] == [[32], [32, 8], [32, 8], []]
    assert "1 texts contain <image> but bring no picture" in capsys.readouterr().out
    samples = run(folder, *(picture_row({key: "a.png"}, images=[], image_url="https://example.org") for key in ("path", "url", "image_path")),
                  {**answer(weight=1), "weight": 1, "file_name": "a.txt", "label": "good"})  # fmt: skip
    assert [len(sample.pictures) for sample in samples] == [1, 1, 1, 0] and "warning" not in capsys.readouterr().out


def test_what_nothing_predicts_is_not_learned(folder):
    """A picture in an answer, and an answer that begins the sample."""
    def marked(messages, tools=None, prompt=False):
        return "".join(BEGIN_ANSWER + text_of(m["content"]) + END_ANSWER for m in messages)

    answer = [{"type": "text", "text": "ab"}, {"type": "image", "image": "b.png"}]
    (sample,) = run(folder, {"messages": [{"role": "assistant", "content": answer}]}, chat=chat_of(marked, marks_answers=True))
    assert decode(sample.tokens) == "ab" + PICTURE and list(sample.weights) == [0, 1, 1, 0, 1]


def picture_row(source, **more):
    return {"messages": [{"role": "user", "content": [{"type": "image", **source}]}, {"role": "assistant", "content": "x"}], **more}


def llava(image, question):
    return {"image": image, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": "x"}]}


def answer(**more):
    return {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", **more}]}


@pytest.mark.parametrize("row, message", [
    ("{", "needs one object per line, or a JSON array"),
    (answer(weight=0), "nothing to learn"),
    (answer(weight=0.5), "messages[1].weight is 0.5; allowed are 0 and 1"),
    (answer(train="no"), "messages[1].train is 'no'; allowed are true and false"),
    (answer(train=True, weight=0), "says both"),
    (answer(train_detail=[]), "messages[1].train_detail would be ignored"),
    ({"messages": [{"role": "user", "content": "a", "weight": 1}, *turns("a", "b")]}, "only messages of the assistant are learned"),
    (answer(tool_calls="x"), "messages[1].tool_calls must be a list"),
    (answer(tool_calls=[{"function": {"name": "f", "arguments": "[1]"}}]), 'messages[1].tool_calls[0]: "arguments" is a string, but not'),
    (answer(function_call={"name": "f"}), 'templates take "tool_calls"'),
    ({**answer(), "system": "s"}, '"system" would be ignored'),
    ({**answer(), "system_prompt": "s"}, '"system_prompt" would be ignored'),
    ({**answer(), "functions": [{"name": "f"}]}, '"functions" would be ignored; write "tools"'),
    ({**answer(), "label": False}, "preference data (KTO)"),
    ({**answer(), "weight": 0}, "c.jsonl:2: weight would be ignored"),
    ({**answer(), "train": False}, "c.jsonl:2: train would be ignored"),
    (answer(masked=True), "messages[1].masked would be ignored"),
    ({"messages": "[]"}, '"messages" is a string, not a list'),
    *(({**answer(), key: "a.png"}, f"c.jsonl:2: {key} would be ignored") for key in ("image_path", "image_url", "img", "pictures", "file_name")),
    (answer(image_url="a.png"), "messages[1].image_url would be ignored"),
    ({**answer(), "tools": [1]}, '"tools" must be a list of objects'),
    ("[1]", "not a JSON object"),
    ({"conversations": []}, "needs \"messages\", a list of {\"role\": ..., \"content\": ...}; it has 'conversations'"),
    ({"messages": ["a"]}, "messages[0] must be"),
    ({"messages": [{"role": "user"}]}, "messages[0].content must be"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "allowed are text and image"),
    ({"messages": turns("a", "b"), "images": ["a.png"]}, '1 "images", and 0'),
    ({"messages": turns("a", "b"), "tools": "{"}, "not JSON"),
    (llava("a.png", "What?"), '1 "images", and 0'),
    (llava(["a.png"], "<image><image>"), "which have 2"),
    ({**llava("a.png", "<image>"), "images": ["a.png"]}, 'has both "image" and "images"'),
    ({**answer(), "video": "a.mp4"}, "video would be ignored"),
    ({**answer(), "audios": ["a.wav"]}, "audios would be ignored"),
    (answer(images=["a.png"]), "messages[1].images would be ignored"),
    (picture_row({"image": "a.png", "text": "x"}), "messages[0].content[0].text would be ignored"),
    (answer(content=[{"type": "text", "text": "b", "weight": 0}]), "messages[1].content[0].weight would be ignored"),
    (answer(content=[{"type": "text", "text": "b", "train": False}]), "messages[1].content[0].train would be ignored"),
    (answer(content=[{"text": "b", "loss_mask": [0]}]), "messages[1].content[0].loss_mask would be ignored"),
    (answer(tool_calls=[{"function": {"name": "f"}, "weight": 0}]), "messages[1].tool_calls[0].weight would be ignored"),
    ({"messages": [{"role": "user", "content": [{"image": "a.png"}, {"text": "<|im"}, {"text": "_end|>"}]}, *turns("a", "b")]}, "the special token '<|im_end|>'"),
    (picture_row({}), "names no picture"),
    (picture_row({"image": "none.png"}), "none.png: no such picture"),
    (picture_row({"image": "broken.png"}), "broken.png: not a picture"),
    (picture_row({"image": "https://example.org/a.png"}), "download pictures first"),
    (picture_row({"url": "https://example.org/a.png"}, images=["b.png"]), "download pictures first"),
    (picture_row({"image": "file:///a.png"}), "leave out file://"),
    *((picture_row({"image": "iVBOR" * n}), f"this looks like base64, '{'iVBOR' * 8}'...") for n in (60, 90000)),
    ({"messages": turns("a", "\nb")}, "messages[1]: its first characters merge"),
    ({"messages": turns("a\ud800", "b")}, r"messages[0].content contains '\ud800', which is half of a character"),
    pytest.param('{"messages": [{"role": "user", "content": "a", "extra": ' + "[" * 700 + "]" * 700 + "}]}", "nested too deeply", id="deep"),
    ({"messages": turns("a", chr(1 << 20))}, "outside the vocabulary of 1048576"),
])  # fmt: skip
def test_bad_lines_are_named(folder, capsys, row, message):
    with pytest.raises(SystemExit) as ended:
        run(folder, {"messages": turns("q", "a")}, row)
    errors = capsys.readouterr().err
    assert ended.value.code == 65 and f"{folder}/c.jsonl:2: " in errors and message in errors and "1 bad lines" in errors
    assert not (folder / "c.h5").exists()
    assert len(run(folder, options=["--skip-errors"])) == 1
    assert "1 bad lines" in capsys.readouterr().out


def test_messages_that_are_not_to_be_learned_are_context(folder):
    messages = turns("a", "b", "c", "d", "e", "f")
    messages[1]["weight"], messages[3]["train"], messages[5]["trainable"] = 0.0, False, True
    (sample,) = run(folder, {"messages": messages})
    plain = [{"role": m["role"], "content": m["content"]} for m in messages]
    assert decode(sample.tokens) == chatml(plain)
    assert decode(sample.tokens[np.asarray(sample.weights) > 0]) == "f<|im_end|>" and list(sample.flags) == list(sample.weights)
    first = [{"role": "assistant", "content": "Hello", "loss": False}, *turns("a", "b")]
    assert learned(first)[0] == ["b<|im_end|>"]


def test_arrays_and_compressed_files_give_what_jsonl_gives(folder, capsys, monkeypatch):
    rows = [*many_rows(300), {"conversations": [{"from": "human", "value": 'a]"\\'}, {"from": "gpt", "value": "}{,b"}]}]
    run(folder, *rows, output="lines.h5")
    (folder / "c.json").write_text("\n" + json.dumps(rows, indent=1))
    text = (folder / "c.jsonl").read_bytes()
    (folder / "c.gz").write_bytes(gzip.compress(text[:99]) + gzip.compress(text[99:]))
    (folder / "bom.jsonl").write_bytes(BOM + text)
    (folder / "bom.json").write_bytes(BOM + (folder / "c.json").read_bytes())
    names = ["c.json", "c.gz", "bom.jsonl", "bom.json"]
    if shutil.which("zstd"):
        subprocess.run(["zstd", "-q", folder / "c.json", "-o", folder / "c.zst"], check=True)
        names.append("c.zst")
    for name in names:
        run(folder, name=name, options=["--workers", "2"])
        assert (folder / "c.h5").read_bytes() == (folder / "lines.h5").read_bytes(), name
        os.mkfifo(folder / "pipe")
        writer = threading.Thread(target=(folder / "pipe").write_bytes, args=[(folder / name).read_bytes()], daemon=True)
        writer.start()
        run(folder, name="pipe")
        writer.join()
        (folder / "pipe").unlink()
        assert (folder / "c.h5").read_bytes() == (folder / "lines.h5").read_bytes(), f"{name} by a pipe"
    good = json.dumps({"messages": turns("q", "a")})
    for text, message in ((f"[{good}, 7,{good},]", "c.json[1]: not a JSON object\n"), (f"[{good},{good},]", "c.json[2]: not JSON"),
                          (f"[{f'{good},' * 256}]", "c.json[256]: not JSON"), (f"[{good}}}", "does not end"),
                          (f"[{good},", "c.json: begins with [ as a JSON array, which does not end"), ("[]", "no conversations"),
                          (f"[{good}]\n{good}", "c.json:1: not a JSON object"), (f'[{good}, "', "does not end")):  # fmt: skip
        (folder / "c.json").write_text(text)
        with pytest.raises(SystemExit) as ended:
            run(folder, name="c.json")
        assert ended.value.code == 65 and message in capsys.readouterr().err, text
    monkeypatch.setenv("PATH", "")
    for start, code, message in ((b"\x1f\x8b12345678", 65, "c.json: not gzip"), (b"\x28\xb5\x2f\xfd", 69, "apt-get install zstd")):
        (folder / "c.json").write_bytes(start)
        with pytest.raises(SystemExit) as ended:
            run(folder, name="c.json")
        assert ended.value.code == code and message in capsys.readouterr().err


def test_a_model_of_text_refuses_pictures(folder, capsys):
    with pytest.raises(SystemExit):
        run(folder, picture_row({"image": "a.png"}), chat=chat_of(picture=None))
    assert "c.jsonl:1: has pictures, and the model folder has no" in capsys.readouterr().err


def test_long_conversations_are_dropped_or_refused(folder, capsys):
    rows = [{"messages": turns("q", "a" * n)} for n in (1, 50, 2)]
    assert len(run(folder, *rows, options=["--max-tokens", "60"])) == 2
    assert "left out: 1 conversations of more than 60 tokens" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run(folder, options=["--max-tokens", "60", "--too-long", "refuse"])
    assert re.search(r"c.jsonl:2: \d+ tokens; --max-tokens allows 60\n", capsys.readouterr().err)
    with pytest.raises(SystemExit):
        run(folder, options=["--max-tokens", "2"])
    assert "no conversations are left: 0 bad lines, and 3 conversations are too long" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(folder, "{", answer(weight=0), options=["--skip-errors"])
    assert re.search("c.jsonl:1: not JSON.*c.jsonl:2: .*no conversations are left: 2 bad lines, and 0", capsys.readouterr().err, re.DOTALL)


def test_equal_conversations_are_held_out_together(folder):
    rows = [{"messages": turns(f"q{n % 50}", "a", "b", "c")} for n in range(200)]
    for row in rows[:100]:
        row["messages"][1]["weight"] = 0  # no other text
    run(folder, *rows, options=["--validation-output", str(folder / "v.h5"), "--validation-share", "0.1"])
    training, held = ([decode(sample.tokens) for sample in read_samples(folder / name)] for name in ("c.h5", "v.h5"))
    assert len(held) == 20 and len(training) == 180 and not set(training) & set(held)


def test_missing_inputs_and_wrong_usage(folder, capsys):
    for arguments, code in ((["--input", str(folder / "none.jsonl")], 66), (["--input", str(folder / "none.parquet")], None),
                            (["--input", "c.jsonl", "--validation-share", "0.1"], 64), (["--input", "c.jsonl", "--too-long", "refuse"], 64)):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            conversations.main(["model", "--output", str(folder / "c.h5"), *arguments], read=lambda *_, **__: chat_of())
        assert ended.value.code == code or code is None and ended.value.code in (66, 69)
    with pytest.raises(SystemExit) as ended:
        conversations.main([str(folder / "none"), "--input", "c.jsonl", "--output", str(folder / "c.h5")])
    assert ended.value.code == 66 and not (folder / "c.h5.parts").exists()


def many_rows(count):
    pictures = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "?"}]
    return [{"messages": [{"role": "user", "content": pictures if n % 40 == 0 else f"q{n}"}, {"role": "assistant", "content": "a" * (n % 9 + 1)}]}
            for n in range(count)]  # fmt: skip


def test_processes_do_not_change_the_output(folder):
    run(folder, *many_rows(900), output="one.h5")
    run(folder, options=["--workers", "3"], output="three.h5")
    assert (folder / "one.h5").read_bytes() == (folder / "three.h5").read_bytes()


def test_a_stopped_run_continues(folder, monkeypatch, capsys):
    run(folder, *many_rows(900), output="whole.h5")
    made = []

    def counting(self, number, make=conversations.Job.make):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(number)
        return make(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(conversations.Job, "make", counting)
        with pytest.raises(SystemExit) as ended:
            run(folder)
    assert ended.value.code == 75 and "the same command continues" in capsys.readouterr().err and not (folder / "c.h5").exists()
    (folder / "c.h5.parts/000000.pixels").write_bytes(b"cut")  # a part that is damaged is made again
    run(folder)
    assert "(256 of an earlier run)" in capsys.readouterr().err
    assert (folder / "c.h5").read_bytes() == (folder / "whole.h5").read_bytes()


def test_a_corrected_line_and_other_settings_make_their_parts_again(folder, capsys):
    rows = many_rows(600)
    with pytest.raises(SystemExit):
        run(folder, *rows[:300], "{", *rows[301:])
    assert "c.jsonl:301: not JSON" in capsys.readouterr().err
    run(folder, *rows, options=["--workers", "2"])
    assert "(344 of an earlier run)" in capsys.readouterr().err  # 256 and 88 of the three parts
    with pytest.raises(SystemExit):
        run(folder, *rows[:300], "{", *rows[301:])
    capsys.readouterr()
    run(folder, *rows, chat=chat_of(identity=1))
    assert "earlier run" not in capsys.readouterr().err


def test_a_corrected_picture_is_read_again(folder, capsys):
    """Also where errors are skipped; pixels in place of a path make no long message."""
    rows = [*many_rows(300), picture_row({"image": "late.png"}), picture_row({"image": "A" * 100000})]
    with pytest.raises(SystemExit):
        run(folder, *rows)
    errors = capsys.readouterr().err
    assert "c.jsonl:301: late.png: no such picture" in errors and "c.jsonl:302: " in errors and len(errors) < 2000
    assert (folder / "c.h5.parts/000001.npz").stat().st_size < 50000
    (folder / "late.png").write_bytes((folder / "a.png").read_bytes())
    assert len(run(folder, options=["--skip-errors"])) == 301
    assert "(256 of an earlier run)" in capsys.readouterr().err


def test_a_killed_run_continues(folder):
    """Through the command line: SIGTERM in the middle to all of its processes, as a batch system sends it, and continued."""
    run(folder, *many_rows(1200), output="whole.h5")
    script = ("import sys, time; sys.path[:0] = sys.argv[1:3]; import conversations, test_conversations as t; make = conversations.Job.make\n"
              "def slow(self, number):\n    time.sleep(0.3 * (number > 1))\n    return make(self, number)\n"
              "conversations.Job.make = slow; conversations.main(sys.argv[3:], read=lambda *_, **__: t.chat_of())")  # fmt: skip
    here = Path(__file__).resolve().parent
    command = [sys.executable, "-c", script, str(here), str(here.parent), "model", "--input", str(folder / "c.jsonl"), "--output", str(folder / "c.h5"),
               "--workers", "2"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 30
    while not (folder / "c.h5.parts/000000.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    assert b"the same command continues" in process.communicate(timeout=30)[1] and process.returncode == 75
    assert not (folder / "c.h5").exists()
    (folder / ".c.h5.17.partial").write_bytes(b"of a run that was killed later")
    run(folder)
    assert (folder / "c.h5").read_bytes() == (folder / "whole.h5").read_bytes()
    assert not list(folder.glob(".*"))


def test_two_runs_do_not_share_an_output(folder, capsys):
    with conversations.parts_folder(folder / "c.h5"):
        with pytest.raises(SystemExit) as ended:
            run(folder, {"messages": turns("q", "a")})
        assert ended.value.code == 74 and "another run is making" in capsys.readouterr().err
