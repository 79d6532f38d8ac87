"""Checks of what is learned: reward, entropy, KL, clipping, gradients, groups without signal, the held-out problems."""

from __future__ import annotations

import math
from statistics import median

from overlap.core import equal_rewards
from overlap.evaluation.evaluate import Estimate, paired_change
from overlap.inspect.run_data import RunData
from overlap.inspect.run_warning import (
    MIN_STEPS,
    Told,
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
_SLOWER = "lower learn.lr or use learn.kl_coef; run.eval_every keeps the best policy in policy-best/"


@check
def learned_nothing(run: RunData) -> Told:
    """No group was learned from in any step."""
    rewards, spread = run.known("reward/mean"), run.known("reward/std")
    equal = equal_rewards((0.0, *spread)) and equal_rewards(rewards)
    critic = field_of(run, "learn", "advantage") == "gae"  # it keeps groups of equal rewards
    if all(row.get("rollout/groups_kept") == 0 for row in run.steps) or (critic and rewards and equal):
        truncated = all(share == 1 for share in run.column("rollout/truncated_share"))
        text = "nothing was learned in any step, so the policy is the one that the run began with"
        yield text, likely_cause(rewards, truncated=truncated, equal=equal)


@check
def reward_fell(run: RunData) -> Told:
    """The reward was much higher before the end."""
    values = run.known("reward/mean")
    if len(values) < MIN_STEPS:
        return
    width = max(3, len(values) // 10)
    means = [mean(values[at : at + width]) for at in range(len(values) - width + 1)]
    best, last = max(means), means[-1]
    if last < min(best / 2, best - 0.1, best - SURE * reward_noise(run)):
        step = int(run.steps[means.index(best)]["step"])
        yield f"the reward fell from {best:.2f} (from step {step} on) to {last:.2f} at the end", _SLOWER


@check
def heldout_fell(run: RunData) -> Told:
    """The policy is worse on the held-out problems than the one that the run began with."""
    change = _heldout(run)
    if change is not None and change.high < 0:
        text = f"the held-out problems are solved less than before the run: {change.value:+.3f} (95% CI "
        yield f"{text}{change.low:+.3f} to {change.high:+.3f})", _SLOWER


@check
def reward_without_heldout(run: RunData) -> Told:
    """The reward rises in training, and on the held-out problems it does not."""
    change, gain = _heldout(run), reward_gain(run)
    if change is not None and gain > max(0.15, SURE * reward_noise(run)) and 0 <= change.high < gain / 2:
        text = f"the reward rose by {gain:.2f} in training, and on the held-out problems by {change.value:+.3f} (at "
        text += f"most {change.high:+.3f}): the reward may be paid without a solution, or the problems are learned by "
        way_out = "read the best samples of the last steps (overlap report), check the tests (overlap check-data), use "
        yield f"{text}heart", f"{way_out}more problems"


def _heldout(run: RunData) -> Estimate | None:
    """Change of the held-out problems from before the run to its last evaluation."""
    points = run.evaluations
    if len(points) < 2 or points[0].step != 0:
        return None
    change = paired_change(points[0].rate, points[-1].rate)
    known = all(map(math.isfinite, (change.value, change.low, change.high)))
    return change if change.problems >= 8 and known else None


@check
def no_signal(run: RunData) -> Told:
    """Most groups taught nothing, in a policy that still fails."""
    kept, dropped = run.total("rollout/groups_kept"), run.total("rollout/groups_dropped")
    share = dropped / (kept + dropped) if kept > 0 else 0.0
    if not 0 < share < 1 or not unsolved(run):
        return
    if share - 2 * math.sqrt(share * (1 - share) / (kept + dropped)) > NO_SIGNAL:
        train = [group for group in run.groups if group["split"] == "train" and group["dropped"]]
        good = sum(group["solved"] == group["samples"] for group in train)
        bad = sum(not group["solved"] for group in train)
        named = f" ({bad} of them all failed, {good} all solved)" if train else ""
        way_out = "choose problems by overlap filter, use more rollout.samples_per_group, or set rollout.refill_groups"
        yield f"{share:.0%} of the groups taught nothing{named}", f"{way_out} or data.drop_solved"


@check
def entropy_collapse(run: RunData) -> Told:
    """The policy always says the same, before it has learned to be right."""
    first, last = first_and_last(run, "learn/entropy")
    if last < first / 10 and unsolved(run):
        text = f"entropy collapsed from {first:.3g} to {last:.3g} nats, so the samples of a group hardly differ"
        yield text, "raise learn.clip_high or learn.entropy_coef, lower learn.lr, or raise rollout.temperature"


@check
def entropy_growth(run: RunData) -> Told:
    """The policy turns to noise."""
    first, last = first_and_last(run, "learn/entropy")
    if last > max(3 * first, 1.0) and not reward_rose(run):
        text = f"entropy grew from {first:.3g} to {last:.3g} nats and the reward did not: the policy turns to noise"
        yield text, "lower learn.lr, learn.entropy_coef or rollout.max_staleness, or use learn.kl_coef"


@check
def length_growth(run: RunData) -> Told:
    """Responses grow, and their reward does not."""
    first, last = first_and_last(run, "rollout/length_mean")
    if last > 2 * first and not reward_rose(run):
        text = f"responses grew from {first:.0f} to {last:.0f} tokens and the reward did not"
        yield text, "set learn.overlong_tokens, or learn.normalize_advantages=false"


@check
def truncated(run: RunData) -> Told:
    """Many responses are cut off before their end."""
    share, tokens = late_mean(run, "rollout/truncated_share"), field_of(run, "model", "response_tokens")
    if share > 0.25:
        text = f"{share:.0%} of the responses were cut off before their end (model.response_tokens={tokens})"
        yield text, "raise model.response_tokens, give rollout.stop, or set learn.overlong_tokens"


@check
def clipping(run: RunData) -> Told:
    """The clip decides for many tokens: the updates of a step are too large."""
    share, loss = late_mean(run, "learn/clip_fraction"), str(field_of(run, "learn", "loss"))
    if share > CLIPPED.get(loss, 0.1):
        way_out = "lower learn.lr or learn.updates_per_step, or widen learn.clip_low and learn.clip_high"
        yield f"{share:.0%} of the tokens were clipped", way_out


@check
def kl_growth(run: RunData) -> Told:
    """The policy runs away from its reference."""
    first, last = first_and_last(run, "learn/kl")
    if last > max(0.5, 3 * first):
        text = f"the KL from the reference policy grew from {first:.3g} to {last:.3g} nats per token"
        yield text, "raise learn.kl_coef or lower learn.lr"


@check
def gradient_spikes(run: RunData) -> Told:
    """Some gradients are many times as large as the others, or no number."""
    norms = run.known("learn/grad_norm")
    learned = [row for row in run.steps if row.get("rollout/groups_kept") and "learn/grad_norm" in row]
    lost = [row["step"] for row in learned if not math.isfinite(row["learn/grad_norm"])]
    if len(norms) < MIN_STEPS:
        if len(lost) > 1:
            text = f"the gradient norm was no number in {len(lost)} steps (step {lost[0]} the first)"
            yield text, "lower learn.lr, use learn.warmup_steps or model.dtype=float32"
        return
    bound = SPIKE * median(norms)
    high = [row["step"] for row in learned if not row["learn/grad_norm"] <= bound]
    if bound > 0 and len(high) >= max(2, len(norms) / 100):
        text = (
            f"the gradient norm was above {SPIKE:g} times its median in {len(high)} steps (step {high[0]} the first, "
        )
        yield f"{text}largest {max(norms):.3g})", "lower learn.grad_clip or learn.lr, or use learn.warmup_steps"


@check
def critic(run: RunData) -> Told:
    """The critic predicts the returns worse than a constant would."""
    share = late_mean(run, "critic/explained_variance")
    if len(run.steps) >= 20 and share < -0.2:
        text = f"the critic predicts returns worse than a constant does (explained variance {share:.2f})"
        yield text, "raise critic.lr or critic.warmup_steps, or use learn.advantage=group"
