"""Lines that a run prints: its plan, a line per step, on a terminal a progress bar below them, a table at the end."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import rich.console
import rich.progress
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Column

from overlap.core.errors import count_of
from overlap.record.logs import Console
from overlap.record.report import by_parameter, learned

if TYPE_CHECKING:
    from overlap.core import Batch
    from overlap.pipeline.flow import Pending


class Progress:
    """One line that shows step, reward, tokens/s, exposed reward seconds and time left. Use as a context manager."""

    LIVE_S = 0.2
    """Shortest time between two refreshes by ``live``, s."""

    def __init__(
        self, console: Console, steps: int, *, done: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.steps, self.done = console, steps, done
        self._clock = clock
        self._marks: deque[float] = deque(maxlen=11)
        self._figures = ""
        self._shown_s = -math.inf
        self._bar: rich.progress.Progress | None = None

    def __enter__(self) -> Progress:
        self._marks.append(self._clock())
        if self.console.tty:
            self._bar = self.console.live = _make_bar(self.console)
            self._task = self._bar.add_task("", total=self.steps, completed=self.done)
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the bar as it is and go to the next line."""
        if self._bar is not None:
            with suppress(OSError, ValueError):  # the terminal is gone
                self._bar.stop()
            self._bar = self.console.live = None

    def phase(self, text: str) -> None:
        """Show what the run does outside of steps: a line, or a note beside the bar."""
        if self._bar is None:
            self.console.print(text)
            return
        self.console.note(text)
        self._show(text)

    def live(self, text: str) -> None:
        """Show progress within a step, e.g. "verified 31/64": on a terminal only, and cheap to call often."""
        if self._bar is not None and self._clock() - self._shown_s >= self.LIVE_S:
            self._show(text)

    def restart(self) -> None:
        """Start the clock of the steps here: start-up and evaluation say nothing about the time left."""
        self._marks.clear()
        self._marks.append(self._clock())

    def step(self, row: Mapping[str, float]) -> None:
        """A step has ended; ``row`` is its row of metrics."""
        self.done += 1
        self._marks.append(self._clock())
        self._figures = f"{figures(row)}  left {duration(self.left_s())}"
        line = f"step {self.done}/{self.steps}  {self._figures}  step {_f(row.get('time/step_s'), '.1f')} s"
        line += nothing_learned(row)
        self.console.print(line)
        self._show("")

    def left_s(self) -> float:
        """Seconds to the last step, by the mean of the last ten; NaN before the first."""
        if len(self._marks) < 2:
            return math.nan
        return (self._marks[-1] - self._marks[0]) / (len(self._marks) - 1) * (self.steps - self.done)

    def _show(self, text: str) -> None:
        self._shown_s = self._clock()
        if self._bar is None:
            return
        shown = "  ".join(filter(None, (self._figures, text)))
        try:
            self._bar.update(self._task, completed=self.done, description=shown, refresh=True)
        except (OSError, ValueError):  # the terminal is gone; the run directory has it all
            self._bar = self.console.live = None


def figures(row: Mapping[str, float]) -> str:
    """The headline figures of a step in one line. Of one in which nothing was learned its pace says nothing."""
    pace = row if learned(row) else {}
    return (
        f"reward {_f(row.get('reward/mean'), '.3f')}  "
        f"solved {_f(row.get('reward/solved_share'), '.0%')}  "
        f"entropy {_f(row.get('learn/entropy'), '.2f')}  "
        f"grad {_f(row.get('learn/grad_norm'), '.2g')}  "
        f"{_count(pace.get('time/tokens_per_s'))} tok/s  "
        f"exposed {_f(pace.get('time/exposed_reward_s'), '.2g')} s"
    )


def nothing_learned(row: Mapping[str, float]) -> str:
    """Reason why nothing was learned in a step; "" where something was."""
    if learned(row):
        return ""
    if row.get("rollout/truncated_share") == 1:
        return "  nothing learned: every response was cut off (model.response_tokens)"
    refused = by_parameter([row], "episode/refused_")
    return "".join(["  nothing learned: all groups were dropped", *(f"; {line}" for line in refusals(refused))])


_BY = {
    "tool_choice": "because no episode.tool_parser reads calls",
    "context": "because the dialog filled the context (episode.tokens)",
    "route": "because there is no such path",
    "requests": "because too many were in flight",
    "body": "because it was too long or no JSON",
}


def refusals(counts: Mapping[str, int]) -> list[str]:
    """A line per parameter that was refused to the programs and rollouts of episodes, the most frequent first."""
    most = sorted(counts.items(), key=lambda counted: -counted[1])
    return [f"`{name}` was refused {n} time{'s' * (n != 1)}, {_BY.get(name, 'by the gateway')}" for name, n in most]


def selection_line(batch: Batch, timeout_s: float) -> str:
    """A warning where ``learn.truncated=mask`` leaves out what had too little time, which depends on how busy the
    machine is; "" where nothing was out of time.
    """
    used = [s.trajectory.used for s in batch.all_samples if s.trajectory.used is not None]
    if not (late := sum(each.out_of_time for each in used)):
        return ""
    return (
        f"step {batch.step}: {late} of {len(used)} episodes ran out of episode.timeout_s={timeout_s:g} and are not "
        "learned from (learn.truncated=mask); on a busy machine that selects for short episodes: allow more time, "
        "or use learn.truncated=zero"
    )


def stall_line(pending: Sequence[Pending], stall_s: float, given_up: bool) -> str:
    """A line that says that no sample ended for ``stall_s`` seconds, which ones hang, and the action taken."""
    names = ", ".join(f"{p.id} ({p.stage} for {p.age_s:.0f} s)" for p in pending[:8])
    more = f" and {len(pending) - 8} more" if len(pending) > 8 else ""
    return f"no sample ended for {stall_s:g} s; {'given up' if given_up else 'started again'}: {names}{more}"


def duration(seconds: float) -> str:
    """Seconds as text: "48 s", "17 min", "2 h 05 min", "26 h"."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes >= 600:
        return f"{round(minutes / 60)} h"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def banner(console: Console, title: str, plan: Iterable[tuple[str, str]]) -> None:
    """Print the plan of the run before it starts: a title and aligned lines "what  value"."""
    rows = list(plan)
    width = max((len(name) for name, _ in rows), default=0)
    console.print(title)
    for name, value in rows:
        console.print(f"  {name:<{width}}  {value}")


def final_table(summary: Mapping[str, Any]) -> str:
    """The figures of the whole run (see ``report.summary``) as text."""
    reward, timing = summary["reward"], summary["timing"]
    ends = f"mean of {count_of(reward['window'], 'step')} at either end"
    outages = ", ".join(f"{s:.1f}" for s in summary.get("engine_outages_s") or ())
    rows = [
        ("steps", f"{summary['steps']} in {duration(summary['seconds'])} ({summary['exit']})"),
        ("reward", f"{_f(reward['first'])} -> {_f(reward['last'])}  ({ends})"),
        *_evaluation_rows(summary),
        ("exposed reward", f"{_f(timing['exposed_reward_share'], '.1%')} of the step time"),
        ("overlap efficiency", _f(timing["overlap_efficiency"], ".2f")),
        ("idle", f"generator {_f(timing['generator_idle_share'], '.0%')}, "
                 f"learner {_f(timing['learner_idle_share'], '.0%')}"),
        ("throughput", f"{_f(timing['tokens_per_s'], ',.0f')} tok/s, {_f(timing['samples_per_s'], '.1f')} samples/s"),
        *_request_rows(summary.get("requests") or {}),
        *_policy_rows(summary.get("policy") or {}, str(summary["run_dir"])),
        *(("went back", line) for line in summary.get("restarts") or ()),
        *([("engine died", f"{outages} s until the next response")] if outages else []),
        *(("not written", line) for line in summary.get("not_written") or ()),
        ("run directory", str(summary["run_dir"])),
        *(("WARNING", line) for line in summary.get("warnings") or ()),
    ]  # fmt: skip
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    rule = "─" * min(100, max(map(len, lines)))
    return "\n".join((rule, *lines, rule))


def _request_rows(counts: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str]]:
    """Requests of episodes that were refused, or of which a parameter had no effect."""
    ignored = sorted(counts.get("ignored", {}).items())
    lines = [
        f"texts held the chat template's mark of a turn, and read as turns, {n} time{'s' * (n != 1)}"
        if name == "turn_marks"
        else f"`{name}` had no effect {n} time{'s' * (n != 1)}: the form of an answer is never forced"
        for name, n in ignored
    ]
    return [("requests", line) for line in (*refusals(counts.get("refused", {})), *lines)]


def _policy_rows(policy: Mapping[str, Any], run_dir: str) -> list[tuple[str, str]]:
    """Rows with the place of the policy, or why it could not be saved and what there is instead."""
    if not policy:
        return []
    if not policy.get("failure"):
        why = f"; not in the run directory: {policy['instead']}" if policy.get("instead") else ""
        return [("policy", f"{policy['path']} (version {policy['version']}){why}")]
    checkpoint = policy.get("checkpoint")
    instead = f"; the newest checkpoint is {checkpoint}: overlap export {run_dir}" if checkpoint else ""
    return [("policy", f"not saved: {policy['failure']}{instead}")]


def _evaluation_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """ "before", "after", "change" and "best", each {"value", "low", "high", ...}, as lines."""
    name, spec, evaluation = "pass@1", ".1%", summary.get("pass_at_1") or {}
    if reward := summary.get("heldout_reward"):
        name, spec, evaluation = "held-out reward", ".3f", reward
    found = {when: e for when in ("before", "after", "change", "best") if (e := evaluation.get(when))}
    return [(f"{name} {when}", _change(e, spec) if when == "change" else _rate(e, spec)) for when, e in found.items()]


def _change(e: Mapping[str, Any], spec: str) -> str:
    value, between = change_texts(e, binary="%" in spec)
    return f"{value}  (95% CI {between})"


def change_texts(change: Mapping[str, Any], *, binary: bool) -> tuple[str, str]:
    """A change {"value", "low", "high"} as text, and its bounds: of a pass rate (``binary``) in points of 100."""
    spec, unit, scale = ("+.1f", " points", 100) if binary else ("+.3f", "", 1)
    known = (change[key] for key in ("value", "low", "high"))
    value, low, high = (_f(None if each is None else scale * each, spec) for each in known)
    return f"{value}{unit}", f"{low} to {high}"


def _rate(e: Mapping[str, Any], spec: str) -> str:
    text = f"{_f(e['value'], spec)}  (95% CI {_f(e['low'], spec)} to {_f(e['high'], spec)})"
    if at_k := e.get("pass_at_k"):
        text += f", pass@{at_k['k']} {_f(at_k['value'], '.1%')}"
    return text + (f", after step {e['step']}" if "step" in e else "")


def _f(value: float | None, spec: str = ".3f") -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, spec)


def _count(value: float | None) -> str:
    """A number of tokens: "1,204", "98k"."""
    return _f(value, ",.0f") if value is None or not value >= 1e4 else f"{value / 1e3:.0f}k"


def _make_bar(console: Console) -> rich.progress.Progress:
    """A bar without a thread of its own: it is drawn when something has happened. The text is cut to what is left of
    the terminal's width.
    """
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = MofNCompleteColumn(), BarColumn(20), TextColumn("{task.description}", markup=False, table_column=rest)
    on = rich.console.Console(file=console.stream)
    return rich.progress.Progress(
        *columns, console=on, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, expand=True
    )
