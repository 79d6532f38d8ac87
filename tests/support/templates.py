"""Small chat templates of the shapes that public ones have, over the tokenizer of letters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jinja2.sandbox
from chats import Letters

_MESSAGE = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
_ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
ONE_CALL = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '<|im_start|>assistant\n{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|im_end|>\n'
    "{% elif m.role == 'tool' %}"
    "{% if not loop.previtem.tool_calls and loop.previtem.role != 'tool' %}{{ raise_exception('no call') }}{% endif %}"
    "<|im_start|>results\n{{ m.content | tojson }}<|im_end|>\n"
    f"{{% else %}}{_MESSAGE}{{% endif %}}{{% endfor %}}{_ASKS}"
)
"""Shows no words beside a call, takes one call per answer, and results only behind a call."""
TOOLS_LAST = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.index0 == ns.last %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "[ASKS]{{ m.content }}[/ASKS]"
    "{% elif m.tool_calls %}[CALLS][{% for call in m.tool_calls %}"
    "{% if not call.id or call.id | length != 9 %}{{ raise_exception('ids of nine characters') }}{% endif %}"
    "{{ call.function | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>"
    "{% elif m.role == 'tool' %}[RESULT]{{ m.content }}[/RESULT]"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
"""Shows the tools with the last message of a user; no words beside calls; the policy speaks behind everything."""
OPEN_TURN = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% set ns = namespace(open=false) %}"
    "{% for m in messages %}{% if m.role != 'tool' %}{% set at = loop.index0 %}"
    "{% if not ns.open or m.role != 'assistant' %}<|im_start|>{{ m.role }}\n{% endif %}{% set ns.open = false %}"
    "{% for call in m.tool_calls or () %}<call>{{ call.function.name }}{{ call.function.arguments | tojson }}</call>"
    "{% endfor %}{% if m.tool_calls %}{% for later in messages[at + 1:] %}"
    "{% if later.role == 'tool' %}{% set ns.open = true %}<result>{{ later.content }}</result>{% endif %}{% endfor %}"
    "{% endif %}{{ m.content }}{% if not ns.open or m.content %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and not ns.open %}<|im_start|>assistant\n{% endif %}"
)
"""Shows results within the turn of the answer, in front of its words."""
THINKS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set thought = m.reasoning_content or '' %}{% set words = m.content %}"
    "{% if '</think>' in words %}{% set words = words.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
    "{% if m.role == 'assistant' and thought and loop.index0 > ns.last %}"
    "<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ words }}{% for call in m.tool_calls or () %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>\n"
    f"{{% endfor %}}{_ASKS}"
    "{% if add_generation_prompt and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
"""Leaves thoughts in front of the last message of a user out, and takes ``enable_thinking``."""
RESULT_FIRST = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% set at = loop.index %}{% if m.tool_calls %}"
    "<|im_start|>assistant\n{% for call in m.tool_calls %}"
    "{% if messages[at] is defined %}[{{ messages[at].content }}]{% endif %}{{ call.function | tojson }}{% endfor %}"
    "<|im_end|>\n"
    f"{{% elif m.role != 'tool' %}}{_MESSAGE}{{% endif %}}{{% endfor %}}{_ASKS}"
)
"""Shows a call otherwise once its result is there."""
NO_CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('nothing to call') }}{% endif %}"
    f"{_MESSAGE}{{% endfor %}}{_ASKS}"
)


class Templated(Letters):
    """The tokenizer of letters with a template in Jinja's language, which gets ``variables``."""

    def __init__(self, source: str, **variables: Any) -> None:
        made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        made.filters["tojson"] = json.dumps
        self._template, self._variables = made.from_string(source), variables

    def apply_chat_template(
        self, messages: list[Mapping[str, Any]], tools: Any = None, tokenize: bool = False,
        add_generation_prompt: bool = True,
    ) -> str:  # fmt: skip
        def refuse(why: str) -> None:
            raise jinja2.TemplateError(why)

        given = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return self._template.render(**given, raise_exception=refuse, **self._variables)
