"""What a user is told of a chat template: what it does with dialogs of several turns. Each sentence is the finding of a
trial of the template, not of a list of known ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from overlap.server.template import ASKED, TOOL, TOOL_NAME, ChatTemplate, called_tool

_ANEW = "opens a branch and is rendered anew (episode/rerendered_tokens)"


def template_notes(template: ChatTemplate) -> Iterator[str]:
    """Sentences about ``template``, which begin with "it"."""
    if not template.continues:
        yield f"what it renders of a dialog depends on what comes later: each turn {_ANEW}"
    if template.plain_mark:
        counted = "such texts are counted (episode/ignored_turn_marks)"
        yield f"it marks turns by plain text: one that holds {template.plain_mark!r} reads as a turn; {counted}"
    yield from _on_thoughts(template)
    yield from _on_tools(template)
    late = {"role": "system", "content": "ovl7late"}
    if not template.shows("ovl7late", [*ASKED, _said("ovl7said"), late, *ASKED]):
        yield "it takes no system message behind the first message"


def _on_thoughts(template: ChatTemplate) -> Iterator[str]:
    """Earlier reasoning in a field of its own, or marked in the text."""
    apart = _said("ovl7said") | {"reasoning_content": "ovl7thought"}
    inline = _said("<think>\novl7thought\n</think>\n\novl7said")
    answer, *results = called_tool(1)
    called = [answer | {"reasoning_content": "ovl7thought"}, *results]
    left_out = any(
        template.shows("ovl7thought", [*ASKED, *dialog]) and not template.shows("ovl7thought", [*ASKED, *dialog, *more])
        for dialog, more in (([apart], ASKED), (called, [_said("ovl7said"), *ASKED]))
    )
    shown = template.shows("ovl7said", [*ASKED, inline, *ASKED])
    if left_out or (shown and not template.shows("ovl7thought", [*ASKED, inline, *ASKED])):
        yield "it leaves earlier reasoning out of a dialog; here that stays in the context as it was sampled"


def _on_tools(template: ChatTemplate) -> Iterator[str]:
    if not template.shows(TOOL_NAME, ASKED, [TOOL]):
        yield "it has no place for tools: a policy learns of them only what the messages say"
    elif TOOL_NAME in (template.tail(_said("ovl7said"), ASKED, [TOOL]) or ""):
        yield "it shows the tools with the last message of a user: in a dialog that goes on they stand once for each"
    one, two = ([*ASKED, *called_tool(count)] for count in (1, 2))
    goes_on = all(template.tail(answer, results, [TOOL]) is not None for _, answer, *results in (one, two))
    if not template.takes(one, [TOOL]):
        behind = "behind one, only a history that is as it was can go on" if goes_on else "a turn behind one is refused"
        yield f"it takes no tool calls: {behind}"
    elif not template.takes(two, [TOOL]):
        yield "it takes one tool call per answer: several are shown as answers of one call each"
    if template.continues and template.takes(one, [TOOL]) and not goes_on:
        yield f"it shows a tool call otherwise once its result is there: each turn behind one {_ANEW}"


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
