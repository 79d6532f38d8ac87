"""All checks of a run together, in ``run_warnings``; here are those of the stages between policy and reward, and of the
answers that get rewards.
"""

from __future__ import annotations

from collections import Counter
from statistics import median

from overlap.config.load import load_config
from overlap.core.errors import count_of
from overlap.inspect import learning_checks
from overlap.inspect.run_data import RunData
from overlap.inspect.run_warning import (
    CHECKS,
    MIN_STEPS,
    RunWarning,
    Told,
    check,
    field_of,
    first_names,
    late_mean,
    reward_rose,
    unsolved,
)
from overlap.record.progress import refusals
from overlap.record.report import by_parameter
from overlap.record.timing import mean
from sandbox.core.checks import printable

__all__ = ["CHECKS", "learning_checks", "run_warnings"]
APPLIED = 0.1
"""Share of a step's change that arrives in the engine of a run that can hardly learn."""
SAME = 3
"""Problems that one accepted program may solve."""


def run_warnings(run: RunData) -> list[RunWarning]:
    """Warnings of the checks, the most urgent first. Raises ConfigError where a file of the run cannot be read."""
    found = ((kind, *told) for kind, each in CHECKS.items() if run.steps for told in each(run))
    # Ids of problems and failures are in a warning as a file has them; it goes to terminals and into one line.
    return [RunWarning(kind, printable(text), printable(way_out)) for kind, text, way_out in found]


@check
def parity(run: RunData) -> Told:
    """Engine and learner differ by nearly as much as is allowed."""
    gaps, dtype = run.known("rollout/parity_gap"), field_of(run, "model", "dtype") or "bfloat16"
    if not gaps:
        return
    bound = load_config({"model.dtype": dtype}).parity_bound
    # In bfloat16 rounding moves the largest difference by tenths; the bound itself is for a quantile.
    exact = dtype == "float32"
    figure, limit = (max(gaps), 0.9 * bound) if exact else (median(gaps[len(gaps) // 2 :]), bound)
    if figure > limit:
        text = f"engine and learner differ by {figure:.3g} nats (at most {bound:g} is allowed), so the run may be "
        options = field_of(run, "rollout", "engine")
        way_out = "leave out options of rollout.engine that change log-probs" if options else "use model.dtype=float32"
        yield f"{text}stopped", f"{way_out} if it stays near the bound (rollout/parity_gap in metrics.jsonl)"


@check
def lost_updates(run: RunData) -> Told:
    """Rounding keeps most of each step from the engine, and the reward does not move."""
    share = late_mean(run, "sync/applied_share")
    # Also a run that learns well in bfloat16 applies a fifth at first: later shares grow as changes add up.
    if len(run.steps) >= 2 * MIN_STEPS and share < APPLIED and not reward_rose(run):
        text = f"only {share:.0%} of each step's change arrived in the engine (sync/applied_share), and the reward "
        yield f"{text}stood still", "use adapters (learn.lora_rank), raise learn.lr or use model.dtype=float32"


@check
def staleness(run: RunData) -> Told:
    """Old samples count for little."""
    share, age = late_mean(run, "learn/is_effective_fraction"), late_mean(run, "rollout/staleness_mean")
    if share < 0.5:
        text = f"the effective sample size of the importance weights is {share:.0%} (mean age {age:.1f} versions)"
        yield text, "lower rollout.max_staleness, learn.lr or learn.updates_per_step"


@check
def refused_requests(run: RunData) -> Told:
    """Programs and rollouts of episodes ask for what is refused."""
    refused = run.total("episode/refused")
    pairs = zip(run.column("episode/turns_mean"), run.column("rollout/samples"), strict=True)
    asked = sum(turns * samples for turns, samples in pairs if turns == turns) + refused
    if asked and refused / asked > 0.05:
        lines = refusals(by_parameter(run.steps, "episode/refused_"))
        way_out = f"{'; '.join(lines[:3])} (docs/episodes.md)" if lines else "see docs/episodes.md"
        yield f"{refused / asked:.0%} of the requests of episodes were refused", way_out


@check
def verifier_failures(run: RunData) -> Told:
    """Samples could not be judged, by no fault of theirs."""
    failed, samples = run.total("verify/failed"), run.total("rollout/samples")
    if samples and failed / samples > 0.01:
        said = Counter(head.values["failure"] for head in run.samples.heads() if head.values["failure"]).most_common(1)
        named = f"; most often: {said[0][0][:120]}" if said else ""
        text = f"{failed / samples:.1%} of the samples could not be judged, through no fault of the program{named}"
        yield text, "run sandbox doctor, and see run.log"


@check
def exposed_reward(run: RunData) -> Told:
    """Verification is not hidden behind generation."""
    exposed, whole = run.total("time/exposed_reward_s"), run.total("time/step_s")
    if len(run.steps) >= 4 and whole and exposed / whole > 0.25:
        workers = field_of(run, "verify", "workers")
        text = f"{exposed / whole:.0%} of the time went by while nothing but verification was waited for"
        yield text, f"raise verify.workers ({workers}), lower verify.cpu_s, or use rollout.max_staleness=1"


@check
def flaky_problems(run: RunData) -> Told:
    """One program of one problem got different verdicts."""
    verdicts: dict[tuple[str, str], set[str]] = {}
    for _, _, row in run.samples.heads():
        if row["program_sha256"] and row["verdict"]:
            verdicts.setdefault((row["prompt_id"], row["program_sha256"]), set()).add(row["verdict"])
    flips = {prompt: found for (prompt, _), found in verdicts.items() if len(found) > 1}
    if flips:
        named = first_names(f"{prompt} ({', '.join(sorted(found))})" for prompt, found in flips.items())
        text = f"equal programs got different verdicts in {count_of(len(flips), 'problem')}: {named}"
        if any("TLE" in found for found in flips.values()):
            yield text, "raise verify.cpu_s or lower verify.workers"
        else:
            yield text, "leave these problems out, or mend their tests"


@check
def weak_verdicts(run: RunData) -> Told:
    """Programs were accepted by a test that they could have forged."""
    train = [group for group in run.groups if group["split"] == "train"]
    weak, solved = sum(group["weak"] for group in train), sum(group["solved"] for group in train)
    if solved and weak / solved > 0.05:
        problems = first_names(dict.fromkeys(group["prompt_id"] for group in train if group["weak"]))
        text = f"{weak / solved:.0%} of the accepted programs passed on a token that a program could forge ({problems})"
        way_out = "read them for hacks (overlap show RUN); leave such problems out (overlap check-data names them)"
        yield text, way_out


@check
def duplicate_programs(run: RunData) -> Told:
    """One program is accepted for many problems."""
    problems: dict[str, dict[str, None]] = {}
    for _, _, row in run.samples.heads():
        if row["program_sha256"] and row["verdict"] == "AC":
            problems.setdefault(row["program_sha256"], {})[row["prompt_id"]] = None
    most = max(problems.values(), key=len, default={})
    if len(most) > SAME:
        way_out = "read it: either the problems are the same, or their tests pay what does not solve them"
        yield f"one program was accepted for {len(most)} problems ({first_names(most)})", way_out


@check
def few_programs(run: RunData) -> Told:
    """The samples of a group become one program, and it is not the right one."""
    failed = [g for g in run.groups if g["split"] == "train" and g["samples"] > 1 and not g["solved"]]
    shares = [group["programs"] / group["samples"] for group in failed]
    if len(shares) < 16 or not unsolved(run):
        return
    width = max(8, len(shares) // 10)
    first, last = mean(shares[:width]), mean(shares[-width:])
    if last < min(0.3, first / 2):
        text = f"of the programs of a group that solved nothing {last:.0%} differ at the end ({first:.0%} at the "
        yield f"{text}beginning)", "raise rollout.temperature or learn.clip_high, or lower learn.lr"
