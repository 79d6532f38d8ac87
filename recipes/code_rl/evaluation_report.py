"""The figures of an evaluation: a table for the user, and ``evaluation.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from overlap.evaluation.evaluate import PassRate
from overlap.pipeline.dataset_filter import PromptSplit
from overlap.record.report import hardware, versions
from recipes.code_rl.answer_file import AnswerFile
from recipes.code_rl.evaluation_sets import EvaluationSet

FORMAT = 1


def digest(settings: Mapping[str, Any]) -> str:
    """Hex digest of the settings that answers are sampled with."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def set_figures(
    found: EvaluationSet, intake: PromptSplit, file: AnswerFile, samples: int, ks: Sequence[int], limit: int | None
) -> dict[str, Any]:
    """Return the figures of one set: pass@k with 95 % intervals, what was left out, and the outcome of each problem."""
    rate = PassRate(tuple(file.tally(prompt, samples) for prompt in intake.prompts))
    figures = rate.figures()
    return {
        "name": found.asked.name,
        "source": found.asked.source,
        "window": str(found.asked.window) if found.dated else "",
        "outside_window": found.outside,
        "limit": limit,
        "problems": len(intake.prompts),
        "left_out": intake.to_json()["left_out"],
        "pass_at": {str(k): asdict(rate.at(k)) for k in ks},
        "judged": rate.samples,
        "not_judged": rate.failed,
        "truncated_share": figures["truncated_share"],
        "tokens_mean": figures["tokens_mean"],
        "tallies": [asdict(tally) for tally in rate.tallies],
    }


def evaluation(
    policy: str, settings: Mapping[str, Any], samples: int, sets: Sequence[Mapping[str, Any]], seconds: float
) -> dict[str, Any]:
    """The whole of ``evaluation.json``; ``seconds`` are those of the last session."""
    return {
        "evaluation": FORMAT,
        "policy": policy,
        "law": dict(settings),
        "samples": samples,
        "seconds": seconds,
        "sets": list(sets),
        "versions": versions(),
        "hardware": hardware(),
    }


def evaluation_table(figures: Mapping[str, Any]) -> str:
    """Lines for the user: a set in each, rates in percent."""
    settings, sets = figures["law"], figures["sets"]
    head = (
        f"{figures['policy']}: {figures['samples']} answers to each problem, temperature {settings['temperature']:g}, "
        f"top-p {settings['top_p']:g}, at most {settings['response_tokens']:,} tokens; all tests; 95 % intervals"
    )
    ks = list(sets[0]["pass_at"]) if sets else []
    rows = [["set", "problems", *(f"pass@{k}" for k in ks), "cut off", "tokens", "not judged"]]
    for found in sets:
        rates = [_rate(found["pass_at"][k]) for k in ks]
        share, tokens = found["truncated_share"], found["tokens_mean"]
        cut, length = ("-", "-") if share != share else (f"{share:.1%}", f"{tokens:,.0f}")
        rows.append([_named(found), str(found["problems"]), *rates, cut, length, str(found["not_judged"])])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [f"{found['name']}: {note}" for found in sets for note in _notes(found)]
    return "\n".join([head, lines[0], "─" * max(map(len, lines)), *lines[1:], *notes])


def _named(found: Mapping[str, Any]) -> str:
    return f"{found['name']} {found['window']}".strip()


def _rate(estimate: Mapping[str, Any]) -> str:
    if not estimate["problems"]:
        return "-"
    return f"{estimate['value']:.1%} ({estimate['low']:.1%} to {estimate['high']:.1%})"


def _notes(found: Mapping[str, Any]) -> list[str]:
    """Return the reasons that these figures differ from figures of the whole set."""
    notes = [
        f"{row['count']} rows left out: {reason}, first {row['first']}" for reason, row in found["left_out"].items()
    ]
    if found["limit"] is not None:
        notes.append(f"at most the first {found['limit']} problems (--limit)")
    for k, estimate in found["pass_at"].items():
        if 0 < estimate["problems"] < found["problems"]:
            notes.append(f"pass@{k} is of {estimate['problems']} problems: the others have fewer judged answers")
    return notes
