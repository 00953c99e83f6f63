"""Turns a conversation into tokens and finds those that the assistant writes.

A template with {% generation %} says so itself. With any other, the conversation is rendered up to each turn of the assistant: the turn
begins where the prompt for it ends, and ends with the special token that ends it when it is the last, or with that behind it when more
follows. Every boundary must be one of tokens, and the tokens before it must be those of the shorter text, because these are what the
model sees when it answers.

The conversation is also rendered with a sign in each text: it tells what the template shows, and where."""

import bisect
import functools
import os
import re

from conversation_forms import REASONING, forms_of, function_of, understood, with_functions
from model_folder import BEGIN_ANSWER, END_ANSWER
from sample_file import SampleError

WINDOW = 4096  # characters in which the last special token of a text is looked for
NO_END = -1
THOUGHT = re.compile(r"(?<=\S)(?<!<think>)\s*</think>")  # the end of reasoning in a content
SIGN = re.compile(r"zq7w(\d{1,6})w7qz", re.IGNORECASE)  # signs are ASCII letters and digits, which templates do not escape
BESIDE = 'write "tools" beside the messages'
HIDDEN = {"tools": BESIDE, "functions": BESIDE, "function_calls": 'write "tool_calls"', "tool_calls": "leave them out"}  # members, and what to do
TOOLS, REASONING_OF_LAST, ARGUMENTS = -1, -2, -3  # the message numbers of the signs in these


class _Arguments(dict):
    """Arguments of a call, with a sign where a template writes them as Python does."""

    def __init__(self, value, sign):
        super().__init__(value)
        self._sign = sign

    def __repr__(self):
        return self._sign + super().__repr__()


def _strings(value, place):
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{place}: a name", key
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
    """Returns the ids of a conversation, and for each whether it is learned. Raises SampleError where this is not certain."""
    return tokens_and_ends_of(messages, tools, chat)[:2]


def tokens_and_ends_of(messages, tools, chat):
    """Also returns, for each answer that is learned, the special token that ends it, or NO_END."""
    messages, learned = understood(messages, chat.quoted)
    if not any(learned):
        roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
        raise SampleError(f"no message of the assistant that is to be learned: nothing to learn; the roles are {roles}")
    refuse_special_tokens(tools, "tools", chat.special)
    messages, text, places = _shown(messages, tools, chat)
    if chat.template.marks_answers:
        return _marked(text, messages, learned, chat)
    ids, ends = chat.encode(text)
    spans, last = [], 0
    for i, is_learned in enumerate(learned):
        if not is_learned:
            continue
        begin = _begin(messages, i, tools, text, ids, ends, chat)
        end, token = _end(messages, i, tools, text, ids, ends, begin, places, chat)
        if not last <= begin <= end:
            raise SampleError(f"messages[{i}]: the chat template does not keep the order of the messages")
        spans.append((begin, end, token))
        last = end
    answers = [False] * len(ids)
    for begin, end, _ in spans:
        answers[begin:end] = [True] * (end - begin)
    return ids, answers, [token for _, _, token in spans]


def _shown(messages, tools, chat):
    """Returns the messages in a form of which the template shows everything, the text, and where the signs of the messages are in it:
    (message number, character) in order, or None if signs change more of the text than where they are."""
    first_error = None
    for form in forms_of(messages):
        refuse_special_tokens(form, "messages", chat.special)
        try:
            text = _render(chat, form, tools)
            return form, text, _places(form, tools, text, chat)
        except SampleError as error:
            first_error = first_error or error
    raise first_error


def _places(messages, tools, text, chat):
    """See _shown."""
    missing, misshown, without_signs, places = _render_signed(messages, tools, chat)
    if TOOLS in missing:
        raise SampleError('"tools": the chat template does not show them; leave them out, or use one that does (--chat-template)')
    _refuse_hidden(messages, tools, text, missing, chat)
    if owners := [owner for owner in missing if owner >= 0]:
        raise SampleError(f"messages[{min(owners)}]: the chat template does not show {_what(messages[min(owners)])}")
    if REASONING_OF_LAST in missing:
        raise SampleError(f"messages[{_last_answer(messages)}]: the chat template does not show its reasoning; leave it out, or use one that does "
                          "(--chat-template)")  # fmt: skip
    for i, value in misshown:
        how = "in quotes" if isinstance(value, str) else "as Python does"
        raise SampleError(f"messages[{i}].tool_calls: the chat template writes arguments {how}, {str(value)[:80]}, and not as JSON")
    return places if without_signs == text else None


def _refuse_hidden(messages, tools, text, missing, chat):
    """Raises SampleError for a member of a message without which the text is the same."""
    for i, message in enumerate(messages):
        for key in HIDDEN:
            if not message.get(key) or key == "tool_calls" and i not in missing:
                continue
            less = {name: value for name, value in message.items() if name != key}
            try:
                same = _render(chat, [*messages[:i], less, *messages[i + 1 :]], tools) == text
            except SampleError:  # the template needs it
                continue
            if same:
                raise SampleError(f"messages[{i}]: the chat template does not show {key}; {HIDDEN[key]}, or use one that does (--chat-template)")


def _last_answer(messages):
    """Returns the number of the last message of the assistant, or None where one of the user follows: templates may then leave out its
    reasoning, as that of earlier ones."""
    i = next((i for i in reversed(range(len(messages))) if messages[i]["role"] in ("assistant", "user")), None)
    return i if i is not None and messages[i]["role"] == "assistant" else None


def _render_signed(messages, tools, chat):
    """Renders the conversation with a sign in each text. Returns the message numbers of signs that the template does not show, the arguments
    that it does not write as JSON, (message number, arguments), the text without signs, and where in it they were, (message number, character)."""
    owners, arguments = [], {}  # message numbers of signs, and (message number, arguments) by the number of their sign

    def sign(owner):
        owners.append(owner)
        return f"zq7w{len(owners) - 1}w7qz"

    def signed(string, owner, at):
        return string[:at] + sign(owner) + string[at:]

    def signed_text(string, i):
        # An answer may have its reasoning before it, which many templates leave out; others look at how a message begins and ends.
        return signed(string, i, len(string.rstrip()) if messages[i]["role"] == "assistant" else len(string) // 2) if string.strip() else string

    def signed_name(function, i):
        return {**function, "name": signed(function["name"], i, len(function["name"]))}

    def signed_call(function, i):
        value, number = function.get("arguments"), len(owners)
        if value and isinstance(value, dict):
            arguments[number] = i, value
            function = {**function, "arguments": _Arguments(value, sign(ARGUMENTS))}
        elif isinstance(value, str) and '"' in value:  # a quotation mark has a backslash before it where the text is shown as a string
            arguments[number] = i, value
            function = {**function, "arguments": signed(value, ARGUMENTS, value.index('"'))}
        return signed_name(function, i)

    def with_signed_reasoning(message):
        thoughts = {key: message[key] for key in REASONING if isinstance(message.get(key), str) and message[key].strip()}
        shown = sign(REASONING_OF_LAST) if thoughts else ""  # by any of these names
        message = {**message, **{key: text.rstrip() + shown + text[len(text.rstrip()) :] for key, text in thoughts.items()}}
        content = message.get("content")
        if isinstance(content, str) and (end := THOUGHT.search(content)):
            message["content"] = signed(content, REASONING_OF_LAST, end.start())
        return message

    changed, last = [], _last_answer(messages)
    for i, message in enumerate(messages):
        message = dict(message)
        if isinstance(message.get("content"), str):
            message["content"] = signed_text(message["content"], i)
        elif message.get("content"):
            message["content"] = [{**part, "text": signed_text(part["text"], i)} if "text" in part else part for part in message["content"]]
        if message.get("tool_calls"):
            message["tool_calls"] = with_functions(message["tool_calls"], lambda function, i=i: signed_call(function, i))
        changed.append(with_signed_reasoning(message) if i == last else message)
    if tools and all(isinstance(function_of(tool).get("name"), str) for tool in tools):
        tools = with_functions(tools, lambda function: signed_name(function, TOOLS))
    pieces = SIGN.split(_render(chat, changed, tools))  # text, number of a sign, text, ...
    numbers = [int(number) for number in pieces[1::2]]
    misshown = [arguments[number] for number, behind in zip(numbers, pieces[2::2])
                if number in arguments and (isinstance(arguments[number][1], dict) or behind.startswith("\\"))]  # fmt: skip
    missing = [owners[number] for number in sorted(set(range(len(owners))).difference(numbers))]
    places, at = [], 0
    for piece, number in zip(pieces[::2], numbers):
        at += len(piece)
        if number < len(owners):
            places.append((owners[number], at))
    return missing, misshown, "".join(pieces[::2]), places


def _what(message):
    calls = "all of its text and calls of tools" if message.get("tool_calls") else "its text"
    return f"{calls}; its role is {message['role']!r}, and templates usually know system, user, assistant and tool"


def _render(chat, messages, tools, prompt=False):
    try:
        return chat.template.render(messages, tools, prompt)
    except ValueError as error:
        raise SampleError(str(error)) from None


def _marked(text, messages, learned, chat):
    pieces = re.split(f"([{BEGIN_ANSWER}{END_ANSWER}])", text)
    plain, spans = "", []
    for piece in pieces:
        if piece == BEGIN_ANSWER:
            spans.append([len(plain), len(plain)])
        elif piece == END_ANSWER:
            spans[-1][1] = len(plain)
        else:
            plain += piece
    assistants = [is_learned for message, is_learned in zip(messages, learned) if message["role"] == "assistant"]
    if not all(assistants):
        if len(spans) != len(assistants):
            raise SampleError(f"the chat template has {len(spans)} {{% generation %}} blocks for {len(assistants)} messages of the assistant, so "
                              "that those of messages that are not to be learned cannot be told")  # fmt: skip
        spans = [span for span, is_learned in zip(spans, assistants) if is_learned]
    ids, ends = chat.encode(plain)
    answers, tokens = [False] * len(ids), []
    spans = [(begin, end) for begin, end in spans if begin < end]
    for n, (begin, end) in enumerate(spans):  # every token that overlaps it, as in transformers
        first, stop = bisect.bisect_right(ends, begin), bisect.bisect_right(ends, end)
        stop += ends[stop - 1] < end  # a token that ends behind the span
        answers[first:stop] = [True] * (stop - first)
        closing = _closing(plain[begin:end].rstrip(), chat)
        between = plain[end : spans[n + 1][0]] if n + 1 < len(spans) else None
        if closing or between is None or chat.special and _any_of(tuple(chat.special)).search(between):
            tokens.append(chat.special[closing[0]] if closing else NO_END)  # otherwise the next block goes on with the same answer
    if not any(answers):
        raise SampleError("the {% generation %} blocks of the chat template enclose nothing of this conversation")
    return ids, answers, tokens


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


def _closing(text, chat):
    """Returns the match of the special token that ends the text, or None."""
    found = list(_any_of(tuple(chat.special)).finditer(text, max(0, len(text) - WINDOW))) if chat.special else []
    return found[-1] if found and found[-1].end() == len(text) else None


@functools.lru_cache
def _behind(tokens):
    """White space and the special token behind it."""
    return re.compile(rf"\s*({_any_of(tokens).pattern})")


def _end(messages, i, tools, text, ids, ends, begin, places, chat):
    """Returns the index behind the last token of message i, and the special token that ends it or NO_END. Where the last message has no
    such token, `ids` and `ends` get the one that would follow if the conversation went on."""

    def found(match):
        """What to return for a match of a special token in the text."""
        index = bisect.bisect_left(ends, match.end(match.lastindex or 0)) if match else len(ids)
        token = chat.special[match[match.lastindex or 0]] if match else None
        return (index + 1, token) if index < len(ids) and ids[index] == token else None

    special = tuple(chat.special)
    last = i + 1 == len(messages)
    until = text if last else _render(chat, messages[: i + 1], tools)
    shown = until.rstrip()
    closing = _closing(shown, chat)
    body = shown[: closing.start()] if closing else shown
    # Some templates end the whole text with a token as well: the answer ends before it.
    inner = _closing(body.rstrip(), chat) if closing else None
    if inner and _ends_before(messages[: i + 1], tools, shown, inner, text, chat) and (end := found(inner)) and end[0] > begin:
        return end
    if closing and text.startswith(shown) and (end := found(closing)):
        return end
    # Some end the last answer with another token than those before, or none: what ends it here is behind it.
    if not last and special and text.startswith(body) and (end := found(_behind(special).match(text, len(body)))):
        return end
    if not closing and text.startswith(until):
        if last and special and (token := _append_end(messages, tools, text, ids, ends, places, chat)) is not None:
            return len(ids), token
        until_ids = ids if last else chat.encode(until)[0]
        if ids[: len(until_ids)] == until_ids:
            return len(until_ids), NO_END
        raise SampleError(f"messages[{i}]: its last characters merge with the next message into one token; the chat template should end an "
                          "answer with a special token")  # fmt: skip
    # Some leave the reasoning out of all answers but the last: the text of this one is somewhere behind its beginning.
    if places is not None and special:
        start = max([at for owner, at in places if owner == i] + [ends[begin - 1] if begin else 0])
        stop = min([at for owner, at in places if owner > i] or [len(text)])
        same = re.compile(f"({re.escape(closing[0])})").search(text, start, stop) if closing else None
        behind = None if messages[i].get("tool_calls") else _behind(special).match(text, start, stop)
        if end := found(same) or found(behind):
            return end
    raise SampleError(f"messages[{i}]: the chat template renders the answer differently when more follows, and ends it with no special token; "
                      "use a template with {% generation %} (--chat-template)")  # fmt: skip


def _one_more(messages):
    """Returns the messages with another one that may follow."""
    return [*messages, {"role": "tool" if messages[-1].get("tool_calls") else "user", "content": "Hello"}]


def _ends_before(messages, tools, shown, inner, text, chat):
    """Returns whether the last message ends with a special token `inner` before the one that ends its text `shown`: where more follows, the
    latter is missing, and a plain answer has both. Otherwise `inner` is a part of the answer, such as the end of a call."""
    try:
        if text.rstrip() == shown:
            text = _render(chat, _one_more(messages), tools)
        if text.startswith(shown) or not text.startswith(shown[: inner.end()]):
            return False
        plain = _render(chat, [*messages[:-1], {"role": messages[-1]["role"], "content": "Hello"}], tools)
    except SampleError:
        return False
    return plain.rstrip().endswith(shown[inner.start() :])


def _append_end(messages, tools, text, ids, ends, places, chat):
    """Appends the special token behind the last message, if more followed, and white space before it. Returns the token, or None."""
    last = len(messages) - 1
    try:
        _, _, longer, longer_places = _render_signed(_one_more(messages), tools, chat)
    except SampleError:
        return None
    at, longer_at = (max([at for owner, at in found if owner == last], default=None) for found in (places or [], longer_places))
    if at is None or longer_at is None:
        return None
    rest = text[at:].rstrip()  # of the answer, behind its text; what is before may differ, such as reasoning
    match = _behind(tuple(chat.special)).match(longer, longer_at + len(rest)) if longer.startswith(rest, longer_at) else None
    if match is None or chat.special[match[1]] == chat.marker:
        return None
    whole = text.rstrip() + match[0]
    whole_ids, whole_ends = chat.encode(whole)
    if not whole.startswith(text) or whole_ids[: len(ids)] != ids or whole_ids[-1] != chat.special[match[1]]:
        return None
    ids += whole_ids[len(ids) :]
    ends += whole_ends[len(ends) :]
    return ids[-1]
