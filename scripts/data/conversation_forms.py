"""What the members of messages mean: roles by other names, what is not to be learned, and calls of tools in the forms of other programs."""

import json
from itertools import product

from sample_file import SampleError

ROLES = ("system", "user", "assistant", "tool")
# Roles of other formats (ShareGPT, OpenAI), unless the chat template has a role of that name.
OTHER_ROLES = {"human": "user", "gpt": "assistant", "observation": "tool", "developer": "system"}
SWITCHES = ("train", "trainable", "training", "loss")  # whether a message is learned
FINER = ("train_detail", "training_detail", "weights", "loss_weight", "loss_scale", "mask", "masked", "loss_mask")  # which parts of it, or how much
WEIGHING = ("weight", *SWITCHES, *FINER)
REASONING = ("reasoning_content", "thinking", "reasoning")  # the names that transformers knows


def understood(messages, quoted):
    """Returns the messages as a chat template takes them, and for each whether it is learned. `quoted` are the words in quotes of the
    template. Raises SampleError for what would otherwise be ignored."""
    found, learned = [], []
    for i, message in enumerate(messages):
        message = {key: value for key, value in message.items() if value is not None}  # as transformers
        message["role"] = _role(message["role"], f"messages[{i}]", quoted)
        learned.append(_is_learned(message, f"messages[{i}]"))
        reasoning = next((message[key] for key in REASONING if key in message), None)
        if reasoning and not isinstance(reasoning, str):
            raise SampleError(f"messages[{i}]: its reasoning ({', '.join(REASONING)}) must be a string")
        if reasoning is not None:  # as transformers
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        if "tool_calls" in message:
            message["tool_calls"] = _calls(message["tool_calls"], f"messages[{i}].tool_calls")
        if "function_call" in message:
            raise SampleError(f'messages[{i}].function_call: templates take "tool_calls", a list of {{"function": {{"name": ..., "arguments": ...}}}}')
        found.append(message)
    return found, learned


def _role(role, place, quoted):
    small = role.lower()
    if found := next((name for name in (small, role) if name in quoted), None):
        return found
    if role == "function_call":
        raise SampleError(f'{place} has the role "function_call"; write a message of the assistant with "tool_calls"')
    if (known := OTHER_ROLES.get(small, small)) not in ROLES:  # a template may print any, and the model would learn from a turn of nobody
        raise SampleError(f"{place} has the role {role!r}, which the chat template does not know; allowed are {', '.join(ROLES)}")
    return known


def _is_learned(message, place):
    """Takes the members that say so out of the message."""
    refuse_weights(message, place, FINER)
    assistant = message["role"] == "assistant"
    chosen = []
    for key in ("weight", *SWITCHES):
        if key in message:
            value = message.pop(key)
            allowed = isinstance(value, bool) if key != "weight" else isinstance(value, (int, float)) and not isinstance(value, bool) and value in (0, 1)
            if not allowed:
                raise SampleError(f"{place}.{key} is {value!r}; allowed are {'0 and 1' if key == 'weight' else 'true and false'}")
            if value and not assistant:
                raise SampleError(f"{place}.{key} is {value!r}, but only messages of the assistant are learned; this one's role is {message['role']!r}")
            chosen.append(bool(value))
    if len(set(chosen)) > 1:
        raise SampleError(f"{place} says both that it is learned and that it is not")
    return assistant and all(chosen)


def refuse_weights(value, place, keys=WEIGHING):
    """Raises SampleError if an object has keys that would weigh parts of a message."""
    for key in keys:
        if value.get(key) is not None:
            name = f"{place}.{key}" if place else key
            raise SampleError(f'{name} would be ignored: a message is learned as a whole, or with "weight": 0 in it not at all')


def function_of(call):
    """Returns the object that has name and arguments of a call, or name and parameters of a tool."""
    return call["function"] if isinstance(call.get("function"), dict) else call


def _calls(calls, place):
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise SampleError(f'{place} must be a list of {{"function": {{"name": ..., "arguments": ...}}}}')
    calls = with_functions(calls, _with_arguments)
    for n, call in enumerate(calls):
        function = function_of(call)
        refuse_weights({**function, **call}, f"{place}[{n}]")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise SampleError(f"{place}[{n}] needs the name of a function")
        if isinstance(function.get("arguments"), str):
            _object_of(function["arguments"], f"{place}[{n}]")
    return calls


def _with_arguments(function):
    """A call without arguments, or with null or an empty text as such, has an empty object of them."""
    value = function.get("arguments")
    return {**function, "arguments": {}} if value is None or isinstance(value, str) and not value.strip() else function


def _object_of(text, place):
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SampleError(f'{place}: "arguments" is a string, but not JSON: {error}') from None
    if not isinstance(value, dict):
        raise SampleError(f'{place}: "arguments" is a string, but not that of a JSON object')
    return value


def with_functions(calls, change):
    """Returns calls or tools with `change` applied to the object that function_of returns of each."""
    return [{**call, "function": change(call["function"])} if isinstance(call.get("function"), dict) else change(call) for call in calls]


def _arguments_as_objects(function):
    value = function.get("arguments")
    return {**function, "arguments": _object_of(value, "")} if isinstance(value, str) else function


def _arguments_as_text(function):
    value = function.get("arguments")
    if not isinstance(value, (dict, list)):
        return function
    try:
        return {**function, "arguments": json.dumps(value, ensure_ascii=False)}
    except (TypeError, ValueError) as error:  # Parquet has more types
        raise SampleError(f"the arguments of a call of {function['name']!r}: {error}") from None


def forms_of(messages):
    """Yields the messages in the forms that chat templates expect calls of tools in, the usual one first: arguments as objects, no
    content beside calls. Others want arguments as JSON text (the form of OpenAI's API), and an empty content or null."""
    calls = [message for message in messages if message.get("tool_calls")]
    contents = ({}, {"content": ""}, {"content": None}) if any("content" not in message for message in calls) else ({},)
    for content, change in product(contents, (_arguments_as_objects, _arguments_as_text) if calls else (None,)):
        yield [{**content, **message, "tool_calls": with_functions(message["tool_calls"], change)} if message.get("tool_calls") else message
               for message in messages]  # fmt: skip
