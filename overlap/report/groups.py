"""Twenty groups with their samples: prompt, answer, program, the first failing test with what was expected and got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from overlap.analysis.run_data import RunData
from overlap.analysis.sample_file import GroupKey, SampleHead, group_key
from overlap.analysis.sample_reason import ACCEPTED, dropped_words, first_failed_test, whole_text
from overlap.core import BY_INTEREST
from overlap.report.page import cut_short, esc, figure_text, section, table

GROUPS = 20
SAMPLES = 16
"""Samples of a group that are shown."""
CHARACTERS = 1_600_000
"""All texts together have about so many; each is cut_short to its share."""
LONGEST, SHORTEST = 6000, 500
KINDS = (*BY_INTEREST, "heldout")
"""Reasons for which groups are kept."""


def sample_groups(run: RunData) -> str:
    """The groups, of all kinds and spread over the run."""
    groups: dict[GroupKey, list[SampleHead]] = {}
    for head in run.samples.heads():
        groups.setdefault(group_key(head.values), []).append(head)
    if not groups:
        return ""
    chosen = choose(groups)
    shown = sum(min(len(groups[key]), SAMPLES) for key in chosen)
    most = max(SHORTEST, min(LONGEST, CHARACTERS // (3 * shown)))
    body = "".join(_group(run, key, groups[key][:SAMPLES], most) for key in chosen)
    total = len(run.samples.heads())
    lead = (
        f"{len(chosen)} of the {len(groups)} groups in trajectories.jsonl ({total:,} samples), of each kind and spread "
    )
    lead += "over the run. Texts are shortened; overlap show prints them whole."
    return section("samples", "Groups and samples", body, lead)


def choose(groups: Mapping[GroupKey, Sequence[SampleHead]]) -> list[GroupKey]:
    """At most ``GROUPS``: of each kind those that are spread evenly over the steps, then of all others, at first those
    that were trained on.
    """
    ordered = sorted(groups, key=_in_order)
    by_kind = {kind: [k for k in ordered if kind in groups[k][0].values["kept_as"]] for kind in KINDS}
    there = [keys for keys in by_kind.values() if keys]
    chosen: dict[GroupKey, None] = {}
    for keys in there:
        chosen |= dict.fromkeys(_spread(keys, GROUPS // len(there)))
    for split in ("train", "heldout"):
        rest = [key for key in ordered if key not in chosen and key[0] == split]
        chosen |= dict.fromkeys(_spread(rest, GROUPS - len(chosen)))
    return sorted(chosen, key=_in_order)


def _in_order(key: GroupKey) -> tuple[int, bool, int]:
    """By steps; the evaluation after a step stands behind it."""
    split, step, group = key
    return step, split == "heldout", abs(group)


def _spread(keys: Sequence[GroupKey], count: int) -> list[GroupKey]:
    """``count`` of them from the first to the last."""
    if len(keys) <= count or count < 2:
        return list(keys[: max(0, count)])
    return [keys[round(at * (len(keys) - 1) / (count - 1))] for at in range(count)]


def _group(run: RunData, key: GroupKey, heads: Sequence[SampleHead], most: int) -> str:
    split, step, _ = key
    first = heads[0].values
    rewards = [head.values["reward"] for head in heads]
    known = [reward for reward in rewards if reward is not None]
    when = (
        f"step {step}" if split == "train" else f"held-out, {'after step ' + str(step) if step else 'before the run'}"
    )
    why = ", ".join([*first["kept_as"], *([f"taught nothing: {dropped_words(first)}"] if first["dropped"] else [])])
    strip = "".join(f'<i title="{esc(figure_text(r))}" style="background:var(--m{_shade(r)})"></i>' for r in rewards)
    mean = figure_text(sum(known) / len(known)) if known else "–"
    title = f'{esc(when)} · <b>{esc(first["prompt_id"])}</b> <span class="strip">{strip}</span>mean reward {mean}'
    rows = [run.samples.row(head) for head in heads]
    prompt = f"<h4>Prompt</h4><pre>{esc(cut_short(rows[0]['prompt'], most))}</pre>"
    samples = "".join(_sample(row, most) for row in rows)
    note = f' <span class="soft">{esc(why)}</span>' if why else ""
    return f"<details><summary>{title}{note}</summary><div>{prompt}{samples}</div></details>"


def _shade(reward: float | None) -> int:
    if reward is None:
        return 2
    return 5 if reward >= 1 else 0 if reward <= 0 else 4 if reward >= 0.5 else 1


def _sample(row: Mapping[str, Any], most: int) -> str:
    verdict = row["verdict"] or ("not scored" if row["failure"] else "–")
    kind = "good" if verdict == ACCEPTED else "soft" if row["verdict"] is None else "bad"
    facts = [f"reward {figure_text(row['reward'])}"]
    facts += [f"advantage {row['advantage']:+.2f}"] if row["advantage"] is not None else []
    facts += [f"{row['passed']} of {row['total']} tests"] if row["total"] else []
    failed = first_failed_test(row)
    facts += [str(failed["message"])] if failed and failed.get("message") else []
    facts += [f"{row['tokens']} tokens, {row['finish']}"]
    facts += [f"{name} {figure_text(value)}" for name, value in row["parts"].items() if len(row["parts"]) > 1]
    facts += ["weak verdict"] if row["weak"] else []
    facts += [f"{row['turns']} turns"] if row["turns"] > 1 else []
    parts = [_text("Not scored", row["failure"], most), _text("Answer", row.get("dialog") or row["answer"], most)]
    program = row.get("program")
    if program:
        language = f" ({program['language']})" if program.get("language") else ""
        parts.append(_text(f"Program{language}", program["source"], most))
    parts += [
        _failing(failed, row["total"], most) if failed else "",
        _text("Compiler", row.get("compile_log") or "", most),
    ]
    title = f'<span class="pill {kind}">{esc(verdict)}</span> <code>{esc(row["id"])}</code> {esc(" · ".join(facts))}'
    return f"<details><summary>{title}</summary><div>{''.join(parts)}</div></details>"


def _text(title: str, text: str, most: int) -> str:
    return f"<h4>{esc(title)}</h4><pre>{esc(cut_short(text, most))}</pre>" if text else ""


def _failing(test: Mapping[str, Any], total: int | None, most: int) -> str:
    """The first test that was not accepted."""
    facts = [("verdict", test["verdict"]), ("message", test.get("message")), ("exit", test.get("exit"))]
    facts += [("signal", test.get("signal")), ("CPU, s", test.get("cpu_s")), ("wall, s", test.get("wall_s"))]
    facts += [("memory, MiB", test["memory_bytes"] / 2**20)] if test.get("memory_bytes") else []
    known = [(name, value) for name, value in facts if value not in (None, "")]
    told = table([name for name, _ in known], [[esc(figure_text(value)) for _, value in known]])
    texts = [_text(name, whole_text(test.get(name)) or "", most) for name in ("input", "expected", "got", "stderr")]
    boxes = "".join(f"<div>{text}</div>" for text in texts if text)
    number = f"{test['index'] + 1} of {total}" if total else str(test["index"] + 1)
    return f'<h4>First failing test: {esc(number)}</h4>{told}<div class="cases">{boxes}</div>'
