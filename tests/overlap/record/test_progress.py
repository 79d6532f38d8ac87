"""One line on a terminal, one line per step elsewhere, and a table at the end."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import select
import subprocess
import sys
import termios
import textwrap
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import ROOT

from overlap.core.json_types import to_json_types
from overlap.record.logs import Console
from overlap.record.progress import Progress, duration, figures, final_table, nothing_learned
from overlap.record.report import summary
from overlap.record.timing import TIMINGS

ROW = {
    "reward/mean": 0.4118,
    "reward/solved_share": 0.375,
    "learn/entropy": 0.5234,
    "learn/grad_norm": 1.2391,
    "time/tokens_per_s": 1204.4,
    "time/exposed_reward_s": 0.308,
    "time/step_s": 38.24,
}
PROGRAM = textwrap.dedent(f"""
    import sys
    from pathlib import Path
    from overlap.record.logs import quiet
    from overlap.record.progress import Progress, banner
    with quiet(Path(sys.argv[1])) as console:
        banner(console, "overlap-rl", [("policy", "tiny"), ("steps", "3")])
        with Progress(console, 3) as progress:
            progress.phase("starting the engine")
            for step in range(3):
                print("chatter")
                progress.live("verified 31/64")
                progress.step({ROW!r})
                if step == 1:
                    console.print("a line in between")
    print("done")
""")


def on_a_terminal(log: Path, columns: int) -> str:
    """Output of the program on a pseudo-terminal, without its control sequences."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (40, columns))
    command = [sys.executable, "-c", PROGRAM, str(log)]
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    child = subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    output = b""
    try:
        with suppress(OSError):  # EIO: the child has closed its side
            while select.select([master], [], [], 60)[0]:
                output += os.read(master, 65536)
    finally:
        child.kill()
        child.wait(timeout=20)
        os.close(master)
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", output.decode())


def test_a_terminal_shows_one_bar_and_lines_above_it(tmp_path):
    output = on_a_terminal(tmp_path / "log", columns=120)
    assert "chatter" not in output
    assert "policy  tiny\r\n" in output
    assert re.search(r"0/3 ━+ starting the engine", output)
    last = output.rstrip().split("\r\n")[-2].split("\r")[-1]
    assert re.search(r"3/3 ━+ reward 0\.412  solved 38%  entropy 0\.52 .* exposed 0\.31 s  left 0 s", last)
    assert re.search(r"a line in between *\r\n", output)
    assert output.endswith("done\r\n")
    for text in (output.replace("\r", "\n"), (tmp_path / "log").read_text()):
        assert [text.count(f"\nstep {step}/3  reward 0.412  solved 38%") for step in (1, 2, 3)] == [1, 1, 1]


def test_on_a_narrow_terminal_the_text_is_cut_and_the_bar_stays(tmp_path):
    drawn = re.split(r"[\r\n]+", on_a_terminal(tmp_path / "log", columns=40))
    bars = [line.rstrip() for line in drawn if "━" in line]
    assert len(bars) > 4
    assert all(re.match(r"\d/3 ━+", line) and len(line) <= 40 for line in bars), bars
    assert not [line for line in drawn if line.startswith("reward")], "text without its bar"


def test_a_pipe_gets_plain_lines_one_per_step(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "log")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "done\n"
    lines = done.stderr.splitlines()
    assert lines[:4] == ["overlap-rl", "  policy  tiny", "  steps   3", "starting the engine"]
    assert lines[4].startswith(
        "step 1/3  reward 0.412  solved 38%  entropy 0.52  grad 1.2  1,204 tok/s  exposed 0.31 s  left "
    )
    assert lines[4].endswith("step 38.2 s")
    assert lines[6] == "a line in between"
    assert len(lines) == 8
    assert "\r" not in done.stderr


def test_time_left_follows_the_last_steps_not_the_start_up():
    clock = SimpleNamespace(now=0.0)
    with Progress(Console(io.StringIO()), 40, clock=lambda: clock.now) as progress:
        clock.now = 500.0  # the engine starts
        assert math.isnan(progress.left_s())
        progress.restart()
        for _ in range(4):
            clock.now += 30
            progress.step(ROW)
        assert progress.left_s() == 36 * 30
        for _ in range(20):
            clock.now += 10
            progress.step(ROW)
        assert progress.left_s() == 16 * 10


def test_durations_are_for_people():
    seconds = (0.4, 48, 89, 95, 17 * 60, 89 * 60, 125 * 60, 26.2 * 3600, math.nan)
    assert [duration(s) for s in seconds] == [
        "0 s", "48 s", "89 s", "2 min", "17 min", "89 min", "2 h 05 min", "26 h", "?",
    ]  # fmt: skip


def test_the_final_table_shows_before_and_after_and_how_long_generation_stood_still_for_a_dead_engine():
    rows = [{"step": k, "reward/mean": k / 10, "time/step_s": 10.0, "time/exposed_reward_s": 0.2} for k in range(1, 11)]
    before = {"value": 0.25, "low": 0.2, "high": 0.3, "pass_at_k": {"k": 4, "value": 0.5}}
    change = {"value": 0.05, "low": -0.01, "high": 0.11}
    found = {"before": before, "after": before | {"step": 10}, "change": change, "best": None}
    more = {"evaluations": found, "extra": {"engine_outages_s": [24.04, 31.5]}}
    made = summary(rows, reason="finished", seconds=1230, run_dir=Path("runs/x"), **more)
    text = final_table(made)
    for line in (
        "steps               10 in 20 min (finished)",
        "reward              0.300 -> 0.800  (mean of 5 steps at either end)",
        "pass@1 before       25.0%  (95% CI 20.0% to 30.0%), pass@4 50.0%",
        "pass@1 after        25.0%  (95% CI 20.0% to 30.0%), pass@4 50.0%, after step 10",
        "pass@1 change       +5.0 points  (95% CI -1.0 to +11.0)",
        "exposed reward      2.0% of the step time",
        "engine died         24.0, 31.5 s until the next response",
        "run directory       runs/x",
    ):
        assert f"{line}\n" in text
    assert "pass@1 best" not in text
    assert "nan" not in text
    assert "engine died" not in final_table(made | {"engine_outages_s": []})
    nothing = figures(ROW | {"rollout/groups_kept": 0, "time/tokens_per_s": 21e3, "time/exposed_reward_s": 0.098})
    assert nothing.endswith("- tok/s  exposed - s")
    assert figures({"reward/mean": math.nan}) == "reward -  solved -  entropy -  grad -  - tok/s  exposed - s"


def test_a_step_that_taught_nothing_says_why():
    assert nothing_learned({**ROW, "rollout/groups_kept": 4}) == ""
    assert "every response was cut off" in nothing_learned({"rollout/groups_kept": 0, "rollout/truncated_share": 1.0})
    dropped = {"rollout/groups_kept": 0, "rollout/truncated_share": 0.5}
    assert "all groups were dropped" in nothing_learned(dropped)
    told = nothing_learned(dropped | {"episode/refused": 212, "episode/refused_tool_choice": 212})
    assert told.endswith("`tool_choice` was refused 212 times, because no episode.tool_parser reads calls")


def test_the_final_table_tells_what_was_refused_to_episodes_and_what_had_no_effect():
    ignored = {"episode/ignored_tool_choice": 2, "episode/ignored_turn_marks": 4}
    rows = [ROW | {"episode/refused_n": 1, **ignored}, ROW | {"episode/refused_context": 3}]
    text = final_table(summary(rows, reason="finished", seconds=9.0, run_dir=Path("runs/x")))
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith("requests")]
    assert lines == [
        "requests `context` was refused 3 times, because the dialog filled the context (episode.tokens)",
        "requests `n` was refused 1 time, by the gateway",
        "requests `tool_choice` had no effect 2 times: the form of an answer is never forced",
        "requests texts held the chat template's mark of a turn, and read as turns, 4 times",
    ]


def rows(count: int) -> list[dict[str, float]]:
    return [
        {f"time/{name}": float(k) for name in TIMINGS}
        | {"step": k, "reward/mean": k / 100, "reward/solved_share": 0.5, "reward/any_solved_share": 0.9}
        | {"rollout/length_mean": 90.0, "rollout/length_max": 256, "rollout/samples": 64, "rollout/tokens": 7000}
        | {"rollout/groups_kept": 6, "rollout/groups_dropped": 2}
        for k in range(1, count + 1)
    ]


def test_the_summary_of_a_run_worked_by_hand():
    some = rows(10)
    for k, row in enumerate(some, 1):
        row |= {"time/step_s": 20.0 if k < 10 else 40.0, "time/exposed_reward_s": 1.0 if k < 10 else 12.0}
    more = {"evaluations": {"before": {"value": 0.1}}, "extra": {"x": 1}}
    made = summary(some, reason="finished", seconds=200, run_dir=Path("run"), **more)
    assert made["reward"] == pytest.approx({"window": 5, "first": 0.03, "last": 0.08, "gain": 0.05, "ratio": 8 / 3})
    assert made["timing"]["learn_s"] == 5
    assert made["timing"]["exposed_reward_share"] == pytest.approx(21 / 220)  # of the totals, not a mean of shares
    assert made["totals"] == {"samples": 640, "tokens": 70000, "groups_kept": 60, "groups_dropped": 20}
    assert made["pass_at_1"] == {"before": {"value": 0.1}}
    assert (made["exit"], made["steps"], made["x"]) == ("finished", 10, 1)


def test_the_first_and_the_last_reward_of_a_short_run_share_no_step():
    rewards = [summary(rows(n), reason="x", seconds=1, run_dir=Path("r"))["reward"] for n in (1, 2, 5)]
    assert [(r["window"], r["first"], r["last"]) for r in rewards] == [
        (1, 0.01, 0.01), (1, 0.01, 0.02), (2, pytest.approx(0.015), pytest.approx(0.045)),
    ]  # fmt: skip


def test_steps_without_a_figure_are_left_out_of_its_median_and_a_run_without_steps_has_a_summary_that_json_takes():
    some = [{"step": 1, "time/learn_s": None}, {"step": 2, "time/learn_s": 4.0}, {"step": 3}]
    assert summary(some, reason="x", seconds=1, run_dir=Path("r"))["timing"]["learn_s"] == 4.0
    made = summary([], reason="error: engine died", seconds=3, run_dir=Path("r"))
    assert json.loads(json.dumps(to_json_types(made), allow_nan=False))["reward"]["first"] is None


def test_the_mean_reward_of_heldout_prompts_stands_in_the_place_of_pass_at_1():
    before = {"measure": "mean reward", "value": -0.25, "low": -0.5, "high": 0.0}
    found = {"before": before, "after": before | {"value": 1.5, "step": 2}}
    more = {"evaluations": found, "measure": "mean reward"}
    made = summary(rows(2), reason="finished", seconds=1, run_dir=Path("r"), **more)
    assert "pass_at_1" not in made
    assert made["heldout_reward"] == found
    text = final_table(made)
    assert "pass@1" not in text
    assert "held-out reward before  -0.250  (95% CI -0.500 to 0.000)" in text
