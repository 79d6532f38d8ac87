"""Checks of what is learned: reward, entropy, KL, clipping, gradients, groups without signal, the held-out problems."""

from __future__ import annotations

import math
from statistics import median

from overlap.core import equal_rewards
from overlap.inspect.run_data import RunData
from overlap.inspect.run_warning import (
    MIN_STEPS,
    RunWarning,
    all_steps,
    check,
    field_of,
    first_and_last,
    late_mean,
    reward_gain,
    reward_noise,
    reward_rose,
    unsolved,
)
from overlap.pipeline.assemble import likely_cause
from overlap.record.timing import mean

CLIPPED = {"gspo": 0.5, "cispo": 0.2}
"""Share of clipped tokens that is too much, by ``learn.loss``; gspo clips whole responses, and many."""
SURE = 4.0
"""Standard errors from which on a change of the reward does not count as chance."""
SPIKE = 10.0
"""A gradient norm is a spike from this multiple of the run's median on."""
NO_SIGNAL = 0.6
"""Share of groups without a learning signal that is too much."""


@check
def learned_nothing(run: RunData) -> RunWarning | None:
    """No group was learned from in any step."""
    rewards, spread = run.known("reward/mean"), run.known("reward/std")
    equal = equal_rewards((0.0, *spread)) and equal_rewards(rewards)
    critic = field_of(run, "learn", "advantage") == "gae"  # it keeps groups of equal rewards
    if any(row.get("rollout/groups_kept") != 0 for row in run.steps) and not (critic and rewards and equal):
        return None
    truncated = all(share == 1 for share in run.column("rollout/truncated_share"))
    cause = likely_cause(rewards, truncated=truncated, equal=equal)
    text = "nothing was learned in any step, so the policy is the one that the run began with"
    return RunWarning(all_steps(run), 0, 1, text, cause)


@check
def reward_fell(run: RunData) -> RunWarning | None:
    """The reward was much higher before the end."""
    values = run.known("reward/mean")
    width = max(3, len(values) // 10)
    means = [mean(values[at : at + width]) for at in range(len(values) - width + 1)]
    if len(values) < MIN_STEPS:
        return None
    best = max(means)
    at, last = means.index(best) + 1, means[-1]
    bound = min(best / 2, best - 0.1, best - SURE * reward_noise(run, width))
    if last >= bound:
        return None
    steps = (int(run.steps[at - 1]["step"]), all_steps(run)[1])
    text = f"the reward fell from {best:.2f} (from step {steps[0]} on) to {last:.2f} at the end"
    way_out = "lower learn.lr or use learn.kl_coef; run.eval_every keeps the best policy in policy-best/"
    return RunWarning(steps, last, bound, text, way_out)


@check
def heldout_fell(run: RunData) -> RunWarning | None:
    """The policy is worse on the held-out problems than the one that the run began with."""
    change = _heldout(run)
    if change is None or change[2] >= 0:
        return None
    text = f"the held-out problems are solved less than before the run: {change[0]:+.3f} (95% CI {change[1]:+.3f} to "
    text += f"{change[2]:+.3f})"
    way_out = "lower learn.lr or use learn.kl_coef; run.eval_every keeps the best policy in policy-best/"
    return RunWarning(all_steps(run), change[2], 0, text, way_out)


@check
def reward_without_heldout(run: RunData) -> RunWarning | None:
    """The reward rises in training, and on the held-out problems it does not."""
    change, gain, rewards = _heldout(run), reward_gain(run), run.known("reward/mean")
    enough = max(0.15, SURE * reward_noise(run, max(3, len(rewards) // 10)))
    if change is None or not gain > enough or not 0 <= change[2] < gain / 2:
        return None
    text = f"the reward rose by {gain:.2f} in training, and on the held-out problems by {change[0]:+.3f} (at most "
    text += f"{change[2]:+.3f}): the reward may be paid without a solution, or the problems are learned by heart"
    way_out = (
        "read the best samples of the last steps (overlap report), check the tests (overlap check-data), use more "
    )
    return RunWarning(all_steps(run), change[2], gain / 2, text, way_out + "problems")


def _heldout(run: RunData) -> tuple[float, float, float] | None:
    """Change of the held-out problems from before the run to its last evaluation, and its bounds."""
    from overlap.evaluation.evaluate import paired_change

    points = run.evaluations
    if len(points) < 2 or points[0].step != 0:
        return None
    change = paired_change(points[0].rate, points[-1].rate)
    bounds = (change.value, change.low, change.high)
    return bounds if change.problems >= 8 and all(map(math.isfinite, bounds)) else None


@check
def no_signal(run: RunData) -> RunWarning | None:
    """Most groups taught nothing, in a policy that still fails."""
    kept, dropped = run.total("rollout/groups_kept"), run.total("rollout/groups_dropped")
    share = dropped / (kept + dropped) if kept else 0.0
    chance = 2 * math.sqrt(max(0.0, share * (1 - share) / (kept + dropped))) if kept else 0.0
    if share - chance <= NO_SIGNAL or not unsolved(run):
        return None
    train = [group for group in run.groups if group["split"] == "train" and group["dropped"]]
    good = sum(group["solved"] == group["samples"] for group in train)
    bad = sum(not group["solved"] for group in train)
    named = f" ({bad} of them all failed, {good} all solved)" if train else ""
    text = f"{share:.0%} of the groups taught nothing{named}"
    way_out = "choose problems by overlap filter, use more rollout.samples_per_group, or set rollout.refill_groups"
    return RunWarning(all_steps(run), share, NO_SIGNAL, text, f"{way_out} or data.drop_solved")


@check
def entropy_collapse(run: RunData) -> RunWarning | None:
    """The policy always says the same, before it has learned to be right."""
    course = first_and_last(run, "learn/entropy")
    if course is None or not course[1] < course[0] / 10 or not unsolved(run):
        return None
    text = f"entropy collapsed from {course[0]:.3g} to {course[1]:.3g} nats, so the samples of a group hardly differ"
    way_out = "raise learn.clip_high or learn.entropy_coef, lower learn.lr, or raise rollout.temperature"
    return RunWarning(all_steps(run), course[1], course[0] / 10, text, way_out)


@check
def entropy_growth(run: RunData) -> RunWarning | None:
    """The policy turns to noise."""
    course = first_and_last(run, "learn/entropy")
    if course is None or not course[1] > max(3 * course[0], 1.0) or reward_rose(run):
        return None
    text = (
        f"entropy grew from {course[0]:.3g} to {course[1]:.3g} nats and the reward did not: the policy turns to noise"
    )
    way_out = "lower learn.lr, learn.entropy_coef or rollout.max_staleness, or use learn.kl_coef"
    return RunWarning(all_steps(run), course[1], max(3 * course[0], 1.0), text, way_out)


@check
def length_growth(run: RunData) -> RunWarning | None:
    """Responses grow, and their reward does not."""
    course = first_and_last(run, "rollout/length_mean")
    if course is None or not course[1] > 2 * course[0] or reward_rose(run):
        return None
    text = f"responses grew from {course[0]:.0f} to {course[1]:.0f} tokens and the reward did not"
    way_out = "set learn.overlong_tokens, or learn.normalize_advantages=false"
    return RunWarning(all_steps(run), course[1], 2 * course[0], text, way_out)


@check
def truncated(run: RunData) -> RunWarning | None:
    """Many responses are cut off before their end."""
    share = late_mean(run, "rollout/truncated_share")
    if not share > 0.25:
        return None
    tokens = field_of(run, "model", "response_tokens")
    text = f"{share:.0%} of the responses were cut off before their end (model.response_tokens={tokens})"
    way_out = "raise model.response_tokens, give rollout.stop, or set learn.overlong_tokens"
    return RunWarning(all_steps(run), share, 0.25, text, way_out)


@check
def clipping(run: RunData) -> RunWarning | None:
    """The clip decides for many tokens: the updates of a step are too large."""
    share, loss = late_mean(run, "learn/clip_fraction"), str(field_of(run, "learn", "loss"))
    bound = CLIPPED.get(loss, 0.1)
    if not share > bound:
        return None
    text = f"{share:.0%} of the tokens were clipped"
    way_out = "lower learn.lr or learn.updates_per_step, or widen learn.clip_low and learn.clip_high"
    return RunWarning(all_steps(run), share, bound, text, way_out)


@check
def kl_growth(run: RunData) -> RunWarning | None:
    """The policy runs away from its reference."""
    course = first_and_last(run, "learn/kl")
    if course is None or not course[1] > max(0.5, 3 * course[0]):
        return None
    text = f"the KL from the reference policy grew from {course[0]:.3g} to {course[1]:.3g} nats per token"
    way_out = "raise learn.kl_coef or lower learn.lr"
    return RunWarning(all_steps(run), course[1], max(0.5, 3 * course[0]), text, way_out)


@check
def gradient_spikes(run: RunData) -> RunWarning | None:
    """Some gradients are many times as large as the others, or no number."""
    norms = run.known("learn/grad_norm")
    learned = [row for row in run.steps if row.get("rollout/groups_kept") and "learn/grad_norm" in row]
    lost = [int(row["step"]) for row in learned if not math.isfinite(row["learn/grad_norm"])]
    if len(norms) < MIN_STEPS:
        return _no_gradient(lost) if len(lost) > 1 else None
    bound = SPIKE * median(norms)
    high = [int(row["step"]) for row in learned if not row["learn/grad_norm"] <= bound]
    if len(high) < max(2, len(norms) / 100) or bound <= 0:
        return None
    worst = max(norms)
    text = f"the gradient norm was above {SPIKE:g} times its median in {len(high)} steps (step {high[0]} the first, "
    text += f"largest {worst:.3g})"
    way_out = "lower learn.grad_clip or learn.lr, or use learn.warmup_steps"
    return RunWarning((high[0], high[-1]), worst, bound, text, way_out)


def _no_gradient(steps: list[int]) -> RunWarning:
    text = f"the gradient norm was no number in {len(steps)} steps (step {steps[0]} the first)"
    way_out = "lower learn.lr, use learn.warmup_steps or model.dtype=float32"
    return RunWarning((steps[0], steps[-1]), len(steps), 1, text, way_out)


@check
def critic(run: RunData) -> RunWarning | None:
    """The critic predicts the returns worse than a constant would."""
    share = late_mean(run, "critic/explained_variance")
    if len(run.steps) < 20 or not share < -0.2:
        return None
    text = f"the critic predicts returns worse than a constant does (explained variance {share:.2f})"
    way_out = "raise critic.lr or critic.warmup_steps, or use learn.advantage=group"
    return RunWarning(all_steps(run), share, -0.2, text, way_out)
