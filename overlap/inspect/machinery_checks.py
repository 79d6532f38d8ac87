"""Checks of the stages between policy and reward: weights, staleness, requests, verification and its time."""

from __future__ import annotations

from collections import Counter
from statistics import median

from overlap.config.load import load_config
from overlap.core.errors import count_of
from overlap.inspect.run_data import RunData
from overlap.inspect.run_warning import (
    MIN_STEPS,
    RunWarning,
    all_steps,
    check,
    field_of,
    first_names,
    late_mean,
    reward_rose,
)
from overlap.record.progress import refusals
from overlap.record.report import by_parameter

APPLIED = 0.1
"""Share of a step's change that arrives in the engine of a run that can hardly learn."""


@check
def parity(run: RunData) -> RunWarning | None:
    """Engine and learner differ by nearly as much as is allowed."""
    gaps = run.known("rollout/parity_gap")
    if not gaps:
        return None
    dtype = field_of(run, "model", "dtype") or "bfloat16"
    bound = load_config({"model.dtype": dtype}).parity_bound
    # In bfloat16 rounding moves the largest difference by tenths; the bound itself is for a quantile.
    exact = dtype == "float32"
    figure, limit = (max(gaps), 0.9 * bound) if exact else (median(gaps[len(gaps) // 2 :]), bound)
    if not figure > limit:
        return None
    text = f"engine and learner differ by {figure:.3g} nats (at most {bound:g} is allowed), so the run may be stopped"
    leave = "leave out options of rollout.engine that change log-probs" if field_of(run, "rollout", "engine") else ""
    way_out = f"{leave or 'use model.dtype=float32'} if it stays near the bound (rollout/parity_gap in metrics.jsonl)"
    return RunWarning(all_steps(run), figure, limit, text, way_out)


@check
def lost_updates(run: RunData) -> RunWarning | None:
    """Rounding keeps most of each step from the engine, and the reward does not move."""
    share = late_mean(run, "sync/applied_share")
    # Also a run that learns well in bfloat16 applies a fifth at first: later shares grow as changes add up.
    if len(run.steps) < 2 * MIN_STEPS or not share < APPLIED or reward_rose(run):
        return None
    text = (
        f"only {share:.0%} of each step's change arrived in the engine (sync/applied_share), and the reward stood still"
    )
    way_out = "use adapters (learn.lora_rank), raise learn.lr or use model.dtype=float32"
    return RunWarning(all_steps(run), share, APPLIED, text, way_out)


@check
def staleness(run: RunData) -> RunWarning | None:
    """Old samples count for little."""
    share = late_mean(run, "learn/is_effective_fraction")
    if not share < 0.5:
        return None
    age = late_mean(run, "rollout/staleness_mean")
    text = f"the effective sample size of the importance weights is {share:.0%} (mean age {age:.1f} versions)"
    way_out = "lower rollout.max_staleness, learn.lr or learn.updates_per_step"
    return RunWarning(all_steps(run), share, 0.5, text, way_out)


@check
def refused_requests(run: RunData) -> RunWarning | None:
    """Programs and rollouts of episodes ask for what is refused."""
    refused = run.total("episode/refused")
    pairs = zip(run.column("episode/turns_mean"), run.column("rollout/samples"), strict=True)
    asked = sum(turns * samples for turns, samples in pairs if turns == turns) + refused
    share = refused / asked if asked else 0.0
    if not share > 0.05:
        return None
    text = f"{share:.0%} of the requests of episodes were refused"
    lines = refusals(by_parameter(run.steps, "episode/refused_"))
    way_out = f"{'; '.join(lines[:3])} (docs/episodes.md)" if lines else "see docs/episodes.md"
    return RunWarning(all_steps(run), share, 0.05, text, way_out)


@check
def verifier_failures(run: RunData) -> RunWarning | None:
    """Samples could not be judged, by no fault of theirs."""
    failed, samples = run.total("verify/failed"), run.total("rollout/samples")
    share = failed / samples if samples else 0.0
    if not share > 0.01:
        return None
    said = Counter(head.values["failure"] for head in run.samples.heads() if head.values["failure"]).most_common(1)
    named = f"; most often: {said[0][0][:120]}" if said else ""
    text = f"{share:.1%} of the samples could not be judged, through no fault of the program{named}"
    return RunWarning(all_steps(run), share, 0.01, text, "run sandbox doctor, and see run.log")


@check
def exposed_reward(run: RunData) -> RunWarning | None:
    """Verification is not hidden behind generation."""
    exposed, whole = run.total("time/exposed_reward_s"), run.total("time/step_s")
    share = exposed / whole if whole else 0.0
    if len(run.steps) < 4 or not share > 0.25:
        return None
    text = f"{share:.0%} of the time went by while nothing but verification was waited for"
    workers = field_of(run, "verify", "workers")
    way_out = f"raise verify.workers ({workers}), lower verify.cpu_s, or use rollout.max_staleness=1"
    return RunWarning(all_steps(run), share, 0.25, text, way_out)


@check
def flaky_problems(run: RunData) -> RunWarning | None:
    """One program of one problem got different verdicts."""
    verdicts: dict[tuple[str, str], set[str]] = {}
    steps: dict[str, list[int]] = {}
    for head in run.samples.heads():
        row = head.values
        if row["program_sha256"] and row["verdict"]:
            verdicts.setdefault((row["prompt_id"], row["program_sha256"]), set()).add(row["verdict"])
            steps.setdefault(row["prompt_id"], []).append(row["step"])
    flips = {prompt: found for (prompt, _), found in verdicts.items() if len(found) > 1}
    if not flips:
        return None
    named = first_names(f"{prompt} ({', '.join(sorted(found))})" for prompt, found in flips.items())
    text = f"equal programs got different verdicts in {count_of(len(flips), 'problem')}: {named}"
    slow = any("TLE" in found for found in flips.values())
    way_out = "raise verify.cpu_s or lower verify.workers" if slow else "leave these problems out, or mend their tests"
    seen = [step for prompt in flips for step in steps[prompt]]
    return RunWarning((min(seen), max(seen)), len(flips), 0, text, way_out)
