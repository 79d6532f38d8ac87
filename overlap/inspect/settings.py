"""Settings of a run: its configuration against the defaults, its history, machine and versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from overlap.config.fields import Config
from overlap.core.json_types import to_json_types
from overlap.inspect.run_data import RunData
from overlap.record.ownership import masked

_NAMES = {"cpu": "processor", "memory_gib": "memory, GiB", "gpus": "GPUs"}


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
        changes = entry.get("changes") or {}
        told = [
            f"{name}: {value_text(change.get('was'))} → {value_text(change.get('is'))}"
            for name, change in (changes.items() if isinstance(changes, Mapping) else ())
            if isinstance(change, Mapping)
        ]
        how = f"resumed after step {entry['step']}" if entry.get("step") else "started"
        history.append([f"{how} {entry.get('at', '')}", str(entry.get("command") or "–"), ", ".join(told)])
    summary = run.summary or {}
    known = [(name, value) for name, value in (summary.get("hardware") or {}).items() if value not in (None, "", [])]
    known += list((summary.get("versions") or {}).items())
    facts = [[_NAMES.get(n, n), ", ".join(map(str, v)) if isinstance(v, list) else str(v)] for n, v in known]
    return {"history": history, "facts": facts}
