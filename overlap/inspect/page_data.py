"""The page of a run: one HTML file with its style and script, and its data as JSON: facts, lists of samples and groups.

Answers of a policy are hostile HTML: they are data for the script, which puts them in as text, and the page's own
policy lets no other script run and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.core.json_types import to_json_types
from overlap.core.kept_groups import BY_INTEREST
from overlap.inspect.curves import run_charts
from overlap.inspect.health import run_warnings
from overlap.inspect.outcome import cards, heldout_problems
from overlap.inspect.run_data import RunData
from overlap.inspect.sample_parts import sample_parts
from overlap.record.ownership import masked
from overlap.record.sample_file import GroupKey, SampleHead, group_key

_SAMPLE = (
    *("split", "step", "group", "sample", "prompt_id", "reward", "advantage", "verdict", "failure", "dropped"),
    *("kept_as", "weak", "passed", "total", "tokens", "truncated", "generate_s", "verify_s"),
)
_GROUP = (
    *("split", "step", "group", "prompt_id", "samples", "solved", "reward", "tokens", "truncated", "dropped"),
    *("verdicts", "learned"),
)
GROUPS, SAMPLES = 20, 16
"""Groups of a report with their texts, and samples of each."""
CHARACTERS = 1_600_000
"""Approximate number in all texts of a report together; each text is cut to its share."""
LONGEST, SHORTEST = 6000, 500
_NAMES = {"cpu": "processor", "memory_gib": "memory, GiB", "gpus": "GPUs"}
HERE = Path(__file__).parent / "page"
SCRIPTS = ("dom", "source", "charts", "list", "sample", "groups", "run", "compare", "app")
"""In the order in which they are read: all of them are one script."""
MARK = "<!-- overlap report -->"
"""In the first line: what tells a file of ours, which may be written over."""


def run_facts(run: RunData) -> dict[str, Any]:
    """All that is shown of a whole run. Raises ConfigError where a file of it cannot be read."""
    summary = run.summary or {}
    notes = [f"went back: {line}" for line in summary.get("restarts") or ()]
    notes += [f"not written: {line}" for line in summary.get("not_written") or ()]
    return {
        "name": run.path.name,
        "path": str(run.path),
        "command": shlex.quote(str(run.path)),
        "policy": str(run.config.get("model", {}).get("policy", "")),
        "state": run.state,
        "live": run.live and run.summary is None,  # a run writes its report before it lets go of its directory
        "at": str(run.history[-1].get("at", "")) if run.history else "",
        "steps": len(run.steps),
        "cards": cards(run) if run.steps else [],
        "notes": notes,
        "warnings": [warning._asdict() for warning in run_warnings(run)],
        "charts": run_charts(run),
        "heldout": heldout_problems(run),
        "settings": settings(run),
        "machine": machine(run),
    }


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration by the names of its fields, as on the command line."""
    parts = ((part, values) for part, values in config.items() if isinstance(values, Mapping))
    return {f"{part}.{name}": value for part, values in parts for name, value in values.items()}


def value_text(value: Any) -> str:
    """A value as it is written in YAML or on the command line, without passwords."""
    return masked(value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str))


def settings(run: RunData) -> dict[str, list[list[str]]]:
    """``changed``: fields that differ from the defaults, with both values; ``same``: all others, with one."""
    usual, found = flat(to_json_types(Config().to_dict())), {"changed": list[list[str]](), "same": list[list[str]]()}
    for name, value in flat(run.config).items():
        if name in usual and usual[name] == value:
            found["same"].append([name, value_text(value)])
        else:
            default = value_text(usual[name]) if name in usual else "no field of this version"
            found["changed"].append([name, value_text(value), default])
    return found


def machine(run: RunData) -> dict[str, list[list[str]]]:
    """``history``: when, by which command and with which changes the run was started and resumed; ``facts``: the
    machine and the versions of libraries.
    """
    history = []
    for entry in run.history:
        changes = [
            f"{name}: {value_text(change.get('was'))} → {value_text(change.get('is'))}"
            for name, change in (entry.get("changes") or {}).items()
        ]
        how = f"resumed after step {entry['step']}" if entry.get("step") else "started"
        history.append([f"{how} {entry.get('at', '')}", str(entry.get("command") or "–"), ", ".join(changes)])
    summary = run.summary or {}
    known = [(name, value) for name, value in (summary.get("hardware") or {}).items() if value not in (None, "", [])]
    known += list((summary.get("versions") or {}).items())
    facts = [[_NAMES.get(n, n), ", ".join(map(str, v)) if isinstance(v, list) else str(v)] for n, v in known]
    return {"history": history, "facts": facts}


def run_lists(run: RunData) -> dict[str, Any]:
    """The small values of all kept samples and of all groups, by columns."""
    heads = run.samples.heads()
    return {
        "samples": by_columns([head.values for head in heads], _SAMPLE),
        "groups": by_columns(run.group_rows, _GROUP),
    }


def by_columns(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Rows as columns: a list of numbers, or of places in the list of the column's ``words``, which JSON has once."""
    return {"count": len(rows), "columns": {name: _column([row[name] for row in rows]) for name in names}}


def _column(values: list[Any]) -> Any:
    if all(type(value) in (int, float, bool) or value is None for value in values):
        return [round(value, 5) if type(value) is float else value for value in values]
    known: dict[str, int] = {}
    places = [known.setdefault(json.dumps(value), len(known)) for value in values]
    return {"words": [json.loads(word) for word in known], "at": places}


def report_data(run: RunData) -> dict[str, Any]:
    """Data that the page of one file embeds: the facts, the groups, and some groups of samples with their texts."""
    groups: dict[GroupKey, list[SampleHead]] = {}
    for head in run.samples.heads():
        groups.setdefault(group_key(head.values), []).append(head)
    heads = [head for key in chosen_groups(groups) for head in groups[key][:SAMPLES]]
    most = max(SHORTEST, min(LONGEST, CHARACTERS // (3 * max(1, len(heads)))))
    texts = {}
    for head in heads:
        place = f"{head.values['step']}/{head.values['group']}/{head.values['sample']}"
        texts[place] = {**_cut(sample_parts(run.samples.row(head)), most), "has_tokens": False}
    return {
        "facts": run_facts(run),
        "samples": by_columns([head.values for head in heads], _SAMPLE),
        "groups": by_columns(run.group_rows, _GROUP),
        "texts": texts,
        "kept": len(run.samples),
    }


def _cut(value: Any, most: int) -> Any:
    """A value of JSON whose texts are all cut to ``most`` characters, with how many are left out of their middle."""
    if isinstance(value, str) and len(value) > most:
        head, tail = most * 2 // 3, most - most * 2 // 3
        return f"{value[:head]}\n… {len(value) - most:,} characters left out …\n{value[-tail:]}"
    if isinstance(value, Mapping):
        return {name: _cut(held, most) for name, held in value.items()}
    return [_cut(held, most) for held in value] if isinstance(value, list | tuple) else value


def chosen_groups(groups: Mapping[GroupKey, Sequence[SampleHead]]) -> list[GroupKey]:
    """At most ``GROUPS``: of each kind that is kept, groups that are spread evenly over the steps, then other groups,
    the trained ones first.
    """
    ordered = sorted(groups, key=_in_order)
    kinds = (*BY_INTEREST, "heldout")
    by_kind = [[key for key in ordered if kind in groups[key][0].values["kept_as"]] for kind in kinds]
    there = [keys for keys in by_kind if keys]
    chosen = dict.fromkeys(key for keys in there for key in _spread(keys, GROUPS // len(there)))
    for split in ("train", "heldout"):
        rest = [key for key in ordered if key not in chosen and key[0] == split]
        chosen |= dict.fromkeys(_spread(rest, GROUPS - len(chosen)))
    return sorted(chosen, key=_in_order)


def _in_order(key: GroupKey) -> tuple[int, bool, int]:
    """Sort key: by steps; the evaluation after a step follows the step."""
    split, step, group = key
    return step, split == "heldout", abs(group)


def _spread(keys: Sequence[GroupKey], count: int) -> list[GroupKey]:
    """``count`` of them from the first to the last."""
    if len(keys) <= count or count < 2:
        return list(keys[: max(0, count)])
    return [keys[round(at * (len(keys) - 1) / (count - 1))] for at in range(count)]


@cache
def page_files() -> tuple[str, str, str]:
    """The HTML around the page's parts, its style and its script."""
    script = "\n".join((HERE / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    return (HERE / "index.html").read_text("utf-8"), (HERE / "page.css").read_text("utf-8"), f'"use strict";\n{script}'


def page_policy(*, served: bool) -> str:
    """The Content-Security-Policy: the page's own style and script, and its server where it has one."""
    _, style, script = page_files()
    asked = "connect-src 'self'; frame-ancestors 'none'; " if served else ""
    rules = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
    return f"{rules}{asked}base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_html(title: str, data: Any = None) -> str:
    """The page, which shows ``data``, or without any asks its server."""
    frame, style, script = page_files()
    parts = {
        "mark": "" if data is None else MARK,
        "policy": html.escape(page_policy(served=data is None).replace("frame-ancestors 'none'; ", "")),
        "title": html.escape(title.encode("utf-8", "backslashreplace").decode()),
        "style": style,
        "script": script,
        "data": json_text(data).replace("<", "\\u003c"),
    }
    before, *pieces = frame.split("{{")
    for piece in pieces:
        name, _, rest = piece.partition("}}")
        before += parts[name] + rest
    return before


def json_text(value: Any) -> str:
    """JSON in ASCII; figures that are no numbers are null."""
    return json.dumps(to_json_types(value), allow_nan=False, separators=(",", ":"))
