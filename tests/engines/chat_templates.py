"""Templates for chats in the forms that models have, written for tests; and random chats."""

from __future__ import annotations

import ast
import re
from itertools import count
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from twinkle.engines import supervised

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

_EACH = "{% for m in messages %}"
_TOOLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
_CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}" + _TOOLS + "<|im_end|>\n{% endfor %}"
_ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_OLMO = (
    "{{ bos_token }}"
    + _EACH
    + "<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' %}LAST{% else %}\n{% endif %}"
)
_ROLES = "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
_PAIRS = (
    "{% if m.role == 'assistant' %} {{ m.content | trim }} </s>"
    "{% else %}<s>[INST] {{ m.content | trim }} [/INST]{% endif %}"
)

TEMPLATES = {
    "chatml": _EACH + _CHATML + _ASKS,
    "default system": "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    + _EACH
    + _CHATML
    + _ASKS,
    "marks": _EACH
    + "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    + _TOOLS
    + "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    + _ASKS,
    "next role ends": _EACH + "<|{{ m.role }}|>\n{{ m.content }}" + _TOOLS + "{% endfor %}" + _ROLES,
    "end of text behind all": _EACH
    + "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
    + "{% else %}{{ eos_token }}{% endif %}",
    "end of the last": _OLMO.replace("LAST", "{{ eos_token if loop.last else '<|eot|>\n' }}") + "{% endfor %}" + _ROLES,
    "other end of the last": _OLMO.replace("LAST", "{{ '<|return|>' if loop.last else '<|end|>' }}")
    + "{% endfor %}"
    + _ROLES,
    "no end of the last": _EACH
    + "<|im_start|>{{ m.role }}\n{{ m.content }}{% if not loop.last %}<|im_end|>\n{% endif %}{% endfor %}"
    + _ASKS,
    "pairs": _EACH + _PAIRS + "{% endfor %}",
    "pairs without spaces": "{{ bos_token }}"
    + _EACH
    + "{% if m.role == 'assistant' %}{{ m.content }}</s>{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}",
    "headers": "{{ bos_token }}"
    + _EACH
    + "<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    + "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}",
    "thoughts of the last": _EACH
    + "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
    + "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}"
    + _CHATML.removeprefix("<|im_start|>{{ m.role }}\n")
    + _ASKS,
    "opened thoughts": _EACH
    + "{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}</s>{% else %}"
    + "<|user|>{{ m.content }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}",
    "channels": _EACH
    + "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}"
    + "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
    + "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    "opens always": "{{ bos_token }}"
    + _EACH
    + "<|head|>{{ m.role }}<|/head|>\n\n{{ m.content }}"
    + _TOOLS
    + "<|eot|>{% endfor %}<|head|>assistant<|/head|>{{ '\n\n' }}",
    "outputs of calls": "{% set ns = namespace(calls=false) %}"
    + _EACH
    + "{% if m.role == 'tool' %}{{ '<|outputs|>' if ns.calls else '' }}<|output|>{{ m.content }}<|/output|>{% else %}"
    + "{% set ns.calls = m.tool_calls is defined %}<|{{ m.role }}|>{{ m.content }}"
    + _TOOLS
    + "{{ '</s>' if m.role == 'assistant' else '' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "a line before calls": _EACH
    + "{{ '\n' if m.tool_calls or m.role == 'user' else '' }}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content }}"
    + _TOOLS
    + "{{ '\n' }}<|eot|>{% endfor %}{% if add_generation_prompt %}{{ '\n' }}<|head|>assistant<|/head|>\n\n{% endif %}",
    "lines": _EACH
    + "{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
}

_MARKS = re.compile(r"<[|\uff5c][^<>\n{}'\"]*?[|\uff5c]>|</?[a-zA-Z_]{1,30}>|<\|?[\w:]+\|?>|\[/?[A-Z_]{2,30}\]")


def template_tokenizer(template: str) -> Any:
    """A tokenizer of bytes, and of what looks like a special token in the template."""
    marks = {
        "<s>",
        "</s>",
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
        "<|observation|>",
        "<|tool|>",
        *_MARKS.findall(template),
    }
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in sorted(marks)])
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="</s>", bos_token="<s>", pad_token="</s>", chat_template=template
    )


_WORDS = [
    "It",
    " is",
    " 42",
    ".",
    "\n",
    " caf\u00e9",
    " \u732b",
    "  two",
    " <b>",
    "?",
    " user",
    "assistant:",
    " \U0001f600",
]


def random_chat(draw: Random, tools: bool = False, system: bool = True) -> list[dict[str, Any]]:
    """A chat of one to three questions with answers, some with thoughts, calls of tools, or a question behind."""

    numbers = count()

    def words(who: str = "u") -> str:
        """Some words, with a name at both ends that no other words have."""
        name = f"{who}{next(numbers)}-{who}"
        return f"{name}{''.join(draw.choice(_WORDS) for _ in range(draw.randint(0, 6)))}{name}"

    chat: list[dict[str, Any]] = []
    if system and draw.random() < 0.3:
        chat.append({"role": "system", "content": words()})
    for _ in range(draw.randint(1, 3)):
        chat.append({"role": "user", "content": words()})
        if tools and draw.random() < 0.4:
            call = {
                "type": "function",
                "id": "abcdefghi",
                "function": {"name": "look", "arguments": {"at": words("c")}},
            }
            chat.append(
                {"role": "assistant", "content": words("a") if draw.random() < 0.5 else "", "tool_calls": [call]}
            )
            chat.append({"role": "tool", "content": words(), "name": "look", "tool_call_id": "abcdefghi"})
        thought = {"reasoning_content": words("t")} if draw.random() < 0.3 else {}
        chat.append({"role": "assistant", "content": words("a"), **thought})
    if draw.random() < 0.2:
        chat.append({"role": "user", "content": words()})
    return chat


def templates_below(folder: Path) -> dict[str, str]:
    """The templates in files below a folder, by their path."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.jinja"))}


def templates_inside(package: Path) -> dict[str, str]:
    """The templates that a package has as texts in its modules, by module and line."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text()
        if "{%" in source:
            for node in ast.walk(ast.parse(source)):
                if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                    continue
                if "{%" in node.value and "messages" in node.value and "Args:" not in node.value:
                    found[f"{path.stem}:{node.lineno}"] = node.value
    return found


def outcome(tokenizer: Any, chat: list[dict[str, Any]]) -> str:
    """Compare what counts of a chat with the template's text, and with its marks where it has some."""
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:
        return "not written by the template"
    try:
        made = supervised([chat], tokenizer)
    except ValueError:
        return "refused"
    assert made.mask is not None
    ids, mask = made.ids[0].tolist(), made.mask[0].tolist()
    if re.search(r"{%-?\s*generation\s*-?%}", tokenizer.chat_template):
        told = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        assert (ids, mask) == (told["input_ids"], told["assistant_masks"])
        return "equal to the marks"
    whole = tokenizer.decode(ids)
    special = {*tokenizer.get_added_vocab().values()}
    added = tokenizer.encode(whole[len(text) :], add_special_tokens=False)
    assert whole.startswith(text) and len(added) <= 1 and (not added or added[0] in special)
    runs, names = [""], {*re.findall(r"[au]\d+-[au]", text)}
    for token, counts in zip(ids, mask, strict=True):
        runs = [*runs[:-1], runs[-1] + tokenizer.decode([token])] if counts else [*runs, ""] if runs[-1] else runs
    runs = [run for run in runs if run]
    counted = {*re.findall(r"[au]\d+-[au]", " ".join(runs))}
    assert counted == {name for name in names if name[0] == "a"}, f"counts {runs} of {text!r}"
    for run in runs:
        last = tokenizer.encode(run.rstrip() or run, add_special_tokens=False)[-1]
        assert last in special or run.endswith("\n"), f"nothing ends {run!r} in {text!r}"
    return "equal to the text"
