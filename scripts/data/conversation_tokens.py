"""Turns a conversation into tokens and finds those that the assistant writes.

A template with {% generation %} says so itself. With any other, the conversation is rendered up to each turn of the assistant: the turn
begins where the prompt for it ends, and ends with the token that ends it when it is the last. Every boundary must be one of tokens, and
the tokens before it must be those of the shorter text, because these are what the model sees when it answers."""

import bisect
import functools
import os
import re

from model_folder import BEGIN_ANSWER, END_ANSWER
from sample_file import SampleError

WINDOW = 4096  # characters in which the last special token of a text is looked for


def _strings(value, place):
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _strings(item, f"{place}[{number}]")


@functools.lru_cache
def _any_of(tokens):
    return re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)))


def refuse_special_tokens(value, place, special):
    """Raises SampleError if a string within `value` contains a special token: it would end a turn or stand for a picture. Half of a
    surrogate pair, which JSON can hold, is refused as well."""
    pattern = _any_of((*special, BEGIN_ANSWER, END_ANSWER))
    for where, text in _strings(value, place):
        if found := pattern.search(text):
            raise SampleError(f"{where} contains the special token {found[0]!r}, which only the chat template may write; remove it")
        if found := re.search("[\ud800-\udfff]", text):
            raise SampleError(f"{where} contains {found[0]!a}, which is half of a character")


def tokens_of(messages, tools, chat):
    """Returns the ids of a conversation, and for each whether the assistant writes it. Raises SampleError where this is not certain."""
    if not any(message["role"] == "assistant" for message in messages):
        raise SampleError("no message of the assistant: nothing to learn")
    refuse_special_tokens(messages, "messages", chat.special)
    refuse_special_tokens(tools, "tools", chat.special)
    text = _render(chat, messages, tools)
    if chat.template.marks_answers:
        return _marked(text, chat)
    ids, ends = chat.encode(text)
    answers, last = [False] * len(ids), 0
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        begin = _begin(messages, i, tools, text, ids, ends, chat)
        end = _end(messages, i, tools, text, ids, ends, begin, chat)
        if not last <= begin <= end:
            raise SampleError(f"messages[{i}]: the chat template does not keep the order of the messages")
        answers[begin:end] = [True] * (end - begin)
        last = end
    return ids, answers


def _render(chat, messages, tools, prompt=False):
    try:
        return chat.template.render(messages, tools, prompt)
    except ValueError as error:
        raise SampleError(str(error)) from None


def _marked(text, chat):
    pieces = re.split(f"([{BEGIN_ANSWER}{END_ANSWER}])", text)
    plain, spans = "", []
    for piece in pieces:
        if piece == BEGIN_ANSWER:
            spans.append([len(plain), len(plain)])
        elif piece == END_ANSWER:
            spans[-1][1] = len(plain)
        else:
            plain += piece
    ids, ends = chat.encode(plain)
    answers = [False] * len(ids)
    for begin, end in spans:  # every token that overlaps it, as in transformers
        first, stop = bisect.bisect_right(ends, begin), bisect.bisect_right(ends, end)
        if begin < end:
            stop += ends[stop - 1] < end  # a token that ends behind the span
            answers[first:stop] = [True] * (stop - first)
    if not any(answers):
        raise SampleError("the {% generation %} blocks of the chat template enclose nothing of this conversation")
    return ids, answers


def _begin(messages, i, tools, text, ids, ends, chat):
    """Returns the index of the first token of message i."""
    if i == 0:
        raise SampleError("messages[0] is the assistant's; a message of the system or the user must come first")
    head = _render(chat, messages[:i], tools)
    prompt = _render(chat, messages[:i], tools, prompt=True)
    # A prompt may go on with what this answer lacks, such as <think>: then they agree up to there.
    common = len(prompt) if text.startswith(prompt) else len(os.path.commonprefix([prompt, text]))
    if common < len(head):
        raise SampleError(f"messages[{i}]: the chat template renders the messages before it differently when more follow, so that the answer "
                          "cannot be located; join answers that follow one another, or use a template with {% generation %} (--chat-template)")  # fmt: skip
    content = messages[i].get("content")
    if prompt == head and isinstance(content, str) and not text[common:].lstrip().startswith(content.strip()):
        raise SampleError(f"messages[{i}]: the chat template ignores add_generation_prompt, so that the answer cannot be located; use a "
                          "template with {% generation %} (--chat-template)")  # fmt: skip
    # Tokens before a special token do not depend on what follows it: encoding from there on is enough.
    start, skipped = _last_special(prompt, common, ids, ends, chat) or (0, 0)
    prompt_ids, prompt_ends = chat.encode(prompt[start:])
    count = bisect.bisect_right(prompt_ends, common - start)
    if prompt_ids[:count] != ids[skipped : skipped + count]:
        hint = ("the prompt begins its reasoning; if answers have none, --template-variable enable_thinking=false"
                if "<think>" in prompt[len(head) :] else "remove white space at its beginning")  # fmt: skip
        raise SampleError(f"messages[{i}]: its first characters merge with the prompt's last ones into one token; {hint}")
    return skipped + count


def _last_special(text, stop, ids, ends, chat):
    """Returns where the last special token of text[:stop] begins, in characters and in `ids`, whose text has the same beginning. None if
    it is not among the last characters."""
    found = list(_any_of(tuple(chat.special)).finditer(text, max(0, stop - WINDOW), stop)) if chat.special else []
    if found:
        index = bisect.bisect_left(ends, found[-1].end())
        if index < len(ids) and ends[index] == found[-1].end() and ids[index] == chat.special[found[-1][0]]:
            return found[-1].start(), index
    return None


def _end(messages, i, tools, text, ids, ends, begin, chat):
    """Returns the index behind the last token of message i: behind the special token that ends it, if there is one."""
    until = text if i + 1 == len(messages) else _render(chat, messages[: i + 1], tools)
    shown = until.rstrip()
    closing = list(_any_of(tuple(chat.special)).finditer(shown, max(0, len(shown) - WINDOW))) if chat.special else []
    if closing and closing[-1].end() == len(shown):
        token = chat.special[closing[-1][0]]
        if text.startswith(shown):
            index = bisect.bisect_left(ends, len(shown))
            if index < len(ids) and ids[index] == token:
                return index + 1
        elif token in ids[begin:]:
            # Some templates leave the reasoning out of all answers but the last: the token that ends the answer is the same.
            return ids.index(token, begin) + 1
    elif text.startswith(until):
        until_ids = ids if until == text else chat.encode(until)[0]
        if ids[: len(until_ids)] == until_ids:
            return len(until_ids)
        raise SampleError(f"messages[{i}]: its last characters merge with the next message into one token; the chat template should end an "
                          "answer with a special token")  # fmt: skip
    raise SampleError(f"messages[{i}]: the chat template renders the answer differently when more follows, and ends it with no special token; "
                      "use a template with {% generation %} (--chat-template)")  # fmt: skip
