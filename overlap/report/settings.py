"""What the run was: configuration against the defaults, its history, versions, machine and command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from overlap.analysis.run_data import RunData
from overlap.config.fields import Config
from overlap.json_types import to_json_types
from overlap.record.command_line import masked
from overlap.report.page import esc, figure_text, section, table

Flat = dict[str, Any]


def flat(config: Mapping[str, Any]) -> Flat:
    """A configuration by the names of its fields, as on the command line."""
    return {
        f"{part}.{name}": value
        for part, values in config.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
    }


def shown(value: Any) -> str:
    """A value as it is written in YAML or on the command line, without passwords."""
    return masked(value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str))


def settings(run: RunData) -> str:
    """Fields that differ from the defaults, and all others folded away."""
    given, usual = flat(run.config), flat(to_json_types(Config().to_dict()))
    missing = object()
    other = {name: value for name, value in given.items() if usual.get(name, missing) != value}
    same = {name: value for name, value in given.items() if name not in other}
    rows = [[_code(name), _code(shown(value)), _default(usual, name)] for name, value in other.items()]
    body = table(("field", "here", "default"), rows) if rows else '<p class="note">All fields have their defaults.</p>'
    if same:
        rest = table(("field", "value"), ([_code(name), _code(shown(value))] for name, value in same.items()))
        body += f"<details><summary>{len(same)} fields with their defaults</summary><div>{rest}</div></details>"
    return section("configuration", "Configuration", body)


def _default(usual: Flat, name: str) -> str:
    return _code(shown(usual[name])) if name in usual else "no field of this version"


def _code(text: object) -> str:
    return f"<code>{esc(text)}</code>"


def surroundings(run: RunData) -> str:
    """When and by which command the run was started and resumed, on what, with which versions."""
    rows = []
    for entry in run.history:
        changed = ", ".join(f"{name}: {shown(c.get('was'))} → {shown(c.get('is'))}" for name, c in _changes(entry))
        when = f"started {entry.get('at', '')}" if not entry.get("step") else f"resumed {entry.get('at', '')}"
        after = f"after step {entry['step']}" if entry.get("step") else ""
        rows.append([esc(when), _code(entry.get("command") or "–"), esc("; ".join(filter(None, (after, changed))))])
    body = table(("when", "command", "changes"), rows) if rows else ""
    summary = run.summary or {}
    facts = [(name, value) for name, value in (summary.get("hardware") or {}).items() if value not in (None, "", [])]
    facts += list((summary.get("versions") or {}).items())
    if facts:
        body += table(("", ""), ([esc(_named(name)), esc(_value(value))] for name, value in facts), "facts")
    body += f'<p class="note">Run directory: <code>{esc(run.path)}</code></p>'
    return section("machine", "Command, machine, versions", body)


def _changes(entry: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    changes = entry.get("changes") or {}
    return [(name, c) for name, c in changes.items() if isinstance(c, Mapping)] if isinstance(changes, Mapping) else []


def _named(name: str) -> str:
    return {"cpu": "processor", "memory_gib": "memory, GiB", "gpus": "GPUs"}.get(name, name)


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else figure_text(value, "g")
