"""What transformers makes of conversations, recorded in chats.json: its versions differ.

    python -m tests.generation.chats

needs transformers. Recorded again when templates or conversations change.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from .folders import DECODERS

FILE = Path(__file__).with_name("chats.json")
#: In the manner of Llama 3.1: tools as JSON, the date, a system message of its own.
LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant', 'tool'] %}
        {{- raise_exception("unknown role " ~ message.role) }}
    {%- endif %}
    {{- '<|start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant\\n\\n' }}{%- endif %}
"""
#: In the manner of Qwen 3: a namespace, a macro, reasoning that is cut, calls of tools, marks.
QWEN = """{%- macro shown(text) %}<{{ text | upper }}>{% endmacro %}
{%- set ns = namespace(last=-1, seen=[]) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if message.role == "user" %}{%- set ns.last = index %}{%- break %}{%- endif %}
{%- endfor %}
{% for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}
    {%- else %}{%- set content = '' %}{% endif %}
{{ shown(message.role) }}
    {%- if message.reasoning_content is string and loop.index0 > ns.last %}
<think>{{ message.reasoning_content.strip('\\n') }}</think>
    {%- endif %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
        {%- endfor %}
    {%- endif %}
    {% generation %}{{ content }}{{ eos_token }}{% endgeneration %}

{% endfor %}
{%- if add_generation_prompt %}<ASSISTANT>
{%- if enable_thinking is defined and not enable_thinking %}
<think></think>{% endif %}{% endif %}
{{ image_token }}{{ pad_token is defined }}{{ messages[0].name is defined }}"""

TALK = [
    {"role": "system", "content": " Be «brief» & <plain>.\n"},
    {"role": "user", "content": "Wie spät ist es in Köln? 😀", "name": None},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "\nI need the time.\n",
        "tool_calls": [{"function": {"name": "now", "arguments": {"zone": "CET", "n": [1, 2.5]}}}],
    },
]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"zone": "ä"}}}]
TEMPLATES = {"llama": LLAMA, "qwen": QWEN}
TALKS = {"llama": TALK[:2], "qwen": TALK}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<img>"}
#: What templates are given besides.
VALUES: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"add_generation_prompt": False, "date_string": "1 Jan 2026"},
    {"enable_thinking": False, "tools": None},
]


def key(template: str, values: dict[str, Any]) -> str:
    """Return what the text of a template, with these values, is recorded under."""
    return json.dumps([template, values])


def texts() -> dict[str, str]:
    """Return the texts of transformers."""
    file = DECODERS / "genai_llama_int4" / "tokenizer.json"
    transformers: Any = import_module("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), **SPECIAL)
    return {
        key(name, values): tokenizer.apply_chat_template(
            TALKS[name],
            chat_template=template,
            tokenize=False,
            **{"add_generation_prompt": True, **values},
        )
        for name, template in TEMPLATES.items()
        for values in VALUES
    }


def main() -> None:
    found = {"texts": texts(), "transformers": sys.modules["transformers"].__version__}
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
