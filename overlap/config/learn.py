"""Learning of policy and critic: the sections ``learn`` and ``critic``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from overlap.config.foreign import meaning
from overlap.config.rules import ImportPath, Number, Stage, Whole, config_section, require, resumable

Truncated = Literal["mask", "zero", "bootstrap"]
ENGINE_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM has places for (``max_lora_rank``)."""


def _no_algorithm(value: Any) -> Any:
    """Refuse what other trainers call an advantage, with its name here."""
    here = meaning(("advantage_estimator",), value)
    require("=" not in here, "learn.advantage", value, f"here that is {here}")
    return value


@config_section
class LearnConfig:
    """Updates of the policy: GRPO+ of DeepCoder by default."""

    ranks: Whole = resumable(1, ge=1)
    """Learner processes."""
    sequence_parallel: Whole = resumable(1, ge=1)
    """Number of ranks that share each sequence (Ulysses, Jacobs et al. 2023): all of them compute a micro-batch, a part
    of its tokens each. Divides ``ranks`` and the heads of the model."""
    zero_stage: Stage = resumable(2)
    """ZeRO stage. With 3 no rank ever holds a whole model: policy, critic and the KL penalty's reference are
    partitioned as they are read."""
    offload: Literal["none", "sleep", "cpu"] = resumable("none")
    """Parts of the learner that are kept in host memory. "none": nothing; "sleep": where engine and learner share GPUs,
    whatever of policy and critic is not at work: all of both while the engine generates, and one while the other
    learns; "cpu": that, and always the optimizer with its float32 weights, which takes its step on the CPU
    (ZeRO-Offload): slow, and 12 bytes less on a GPU for each parameter. The steps are the same."""
    lr: Number = Field(1e-6, gt=0)
    """Peak learning rate."""
    lora_rank: Whole = Field(0, ge=0, le=ENGINE_RANKS[-1])
    """Rank r of the adapters (LoRA) that are trained in the weights' place, on all linear layers of the decoder, with
    alpha = 2 r; 0: all weights are trained. Adapters take an ``lr`` about 10 times as large (Schulman et al. 2025). A
    critic is trained whole. The engine gets the adapters alone and computes them beside the policy as the run began
    (vLLM's LoRA support): rounded into bfloat16 weights, most of the first changes would be lost."""
    warmup_steps: Whole = Field(0, ge=0)
    """Optimizer steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up; linear and cosine end at 0 with the run."""
    weight_decay: Number = Field(0.0, ge=0)
    """AdamW weight decay."""
    grad_clip: Number = Field(1.0, gt=0)
    """Largest global gradient norm."""
    updates_per_step: Whole = Field(1, ge=1)
    """Optimizer steps per batch (mini-batches of whole groups)."""
    micro_batch_tokens: Whole = resumable(8192, ge=1)
    """Tokens, padding included, in one forward-backward pass."""
    recompute: Literal["auto", "always", "never"] = resumable("auto")
    """Recomputation of each layer in the backward pass (activation checkpointing), for a third more time. "auto": where
    a pass of ``micro_batch_tokens`` would keep more than 8 GiB of activations. The loss is the same."""
    clip_low: Number | None = Field(None, ge=0, lt=1)
    """The ratio in the loss is clipped to [1 - clip_low, 1 + clip_high]; null: 0.2 for ppo (and a function of your
    own), 3e-4 for gspo. cispo has no lower bound, pg none at all."""
    clip_high: Number | None = Field(None, ge=0)
    """See ``clip_low``; null: 0.28 for ppo (DAPO's clip-higher; and a function of your own), 4 for cispo, 4e-4 for
    gspo."""
    dual_clip: Number | None = Field(None, gt=1)
    """With the loss "ppo": the largest ratio that counts against a token whose advantage is below 0. A token beyond it
    has no gradient (dual-clip PPO, Ye et al. 2020; verl has 3). null: there is no such bound."""
    kl_coef: Number = Field(0.0, ge=0)
    """Weight of the penalty for the KL divergence from the reference policy, in nats; 0 loads none."""
    reference: str = ""
    """Checkpoint of the reference policy, named as ``model.policy`` is; its size is free, its tokenizer is the
    policy's. "": the policy as the run began. A stronger one here, with ``advantage=none`` and ``kl_coef=1``, teaches
    the policy on its own samples (distillation)."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Place of the KL penalty. "loss": its estimate exp(-d) - 1 + d, with d a token's log-prob by the policy less that
    by the reference, is a term of the loss (GRPO; k3 of Schulman 2020); "reward": d itself (k1), by the policy before
    the step, is taken off each token's reward, and from there gets into advantages: of "gae" by the critic (PPO of
    RLHF), of "none" into the token's own alone, of all others also into those of the tokens before it. d in the reward
    has the gradient of KL(policy || reference), k3 in the loss that of KL(reference || policy)."""
    entropy_coef: Number = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    advantage: Annotated[
        Literal["group", "leave_one_out", "global", "gae", "none"] | ImportPath, BeforeValidator(_no_algorithm)
    ] = "group"
    """Baseline that a reward is compared with. "group": the mean of its prompt's samples (GRPO); "leave_one_out": that
    of the others of them (RLOO); "global": mean and deviation of the step's samples (REINFORCE++); "gae": what a critic
    expects at each token (PPO), see the section ``critic``; "none": rewards teach nothing and are only reported, the KL
    penalty alone teaches (distillation). A function of your own: ``overlap.pipeline.advantage.GroupAdvantage``."""
    normalize_advantages: bool | None = None
    """Division of advantages by their standard deviation: within the prompt's group (false: Dr. GRPO), within the step
    for "global" and "gae" (which is centred too). null: done for "group" and "global"; never for "leave_one_out"."""
    truncated: Truncated = "mask"
    """Samples that ran out of tokens before they ended. "mask": out of the loss (their rewards still count in means);
    "zero": learned from as if they had ended, with the reward that they got; "bootstrap", with "gae": the critic's
    value of their last token replaces their reward, and that token is left out of the losses."""
    overlong_tokens: Whole = Field(0, ge=0)
    """Responses that end within this many tokens of ``model.response_tokens`` are worth less, evenly down to 0.5 off at
    that limit (DAPO's soft overlong punishment, for rewards of 0 to 1); 0: none. ``reward/mean`` is without it. It is
    part of a cut off response's reward: out of the loss with it by "mask", replaced with it by "bootstrap". An episode
    has one reward and responses of many lengths, so there it must be 0."""
    loss: Literal["ppo", "pg", "cispo", "gspo"] | ImportPath = "ppo"
    """Bound of the updates after the first one of a step (with one update a step, all choices are the same).

    "ppo": each token's ratio to the policy before the step is clipped; "cispo": it is cut, but keeps its gradient
    (MiniMax-M1); "gspo": the mean ratio of the whole response is clipped (Qwen3); "pg": nothing, the correction alone
    (REINFORCE; with "tis" it is ScaleRL's form of CISPO). DPPO's mask is ``correction="dppo"``. A function of your own:
    ``overlap.learner.losses.PolicyLoss``.
    """
    correction: Literal["tis", "mis", "seq_mis", "decoupled", "dppo", "none"] | ImportPath = "tis"
    """Weight, by the learner/engine ratio, that makes samples of another policy count as those of the learner's policy.

    "tis": token ratios, cut at 2; "mis": token ratios, 0 outside [1/2, 2] (IcePop); "seq_mis": the ratio of the whole
    response, in an episode that of each branch, 0 over 2 (TRL); "decoupled": token ratios, 0 over 5, around the policy
    before the step (AReaL); "dppo": token ratios up to 20, 0 where a probability moved by more than 0.2 (prime-rl,
    verl), with ``loss="pg"``; "none": 1, stale samples count as if they were fresh (the plan says so). A function of
    your own, also for another bound: ``overlap.learner.correction.TokenCorrection``.
    """

    def __post_init__(self) -> None:
        way_out = f"ranks that share a sequence come in whole groups: use a divisor of learn.ranks={self.ranks}"
        require(self.ranks % self.sequence_parallel == 0, "learn.sequence_parallel", self.sequence_parallel, way_out)
        way_out = "the critic reads whole sequences: use 1, or another learn.advantage than gae"
        whole = self.sequence_parallel == 1 or self.advantage != "gae"
        require(whole, "learn.sequence_parallel", self.sequence_parallel, way_out)
        how, loss = self.correction, self.loss
        group, way_out = self.advantage == "leave_one_out", "RLOO divides by nothing: use null, or another advantage"
        require(not (group and self.normalize_advantages), "learn.normalize_advantages", True, way_out)
        way_out = "dppo replaces the clip: use learn.loss=pg, or another learn.correction"
        require(how != "dppo" or loss == "pg" or ":" in loss, "learn.loss", loss, way_out)
        way_out = "decoupled needs the policy before the step: use learn.loss=ppo, or learn.correction=mis"
        require(how != "decoupled" or loss != "pg", "learn.loss", loss, way_out)
        lone = how == "none" and loss == "pg" and self.updates_per_step > 1
        way_out = "nothing bounds the updates after the first: use learn.loss=ppo, or learn.correction=tis"
        require(not lone, "learn.loss", loss, way_out)
        way_out = "only a critic knows what a cut off sample was worth: use mask or zero, or learn.advantage=gae"
        require(self.truncated != "bootstrap" or self.advantage == "gae", "learn.truncated", self.truncated, way_out)
        self._check_response_clip()
        self._check_kl()
        way_out = "it bounds the ratio of ppo: use learn.loss=ppo, or null"
        require(self.dual_clip is None or loss == "ppo", "learn.dual_clip", self.dual_clip, way_out)

    def _check_kl(self) -> None:
        """Raise ConfigError for what the KL penalty cannot do, and where nothing would be taught."""
        way_out = 'nothing is held against it: use learn.kl_coef above 0, or ""'
        require(not self.reference or self.kl_coef > 0, "learn.reference", self.reference, way_out)
        if self.advantage == "none":
            way_out = "nothing would be learned: use learn.kl_coef above 0, or another learn.advantage"
            require(self.kl_coef > 0, "learn.advantage", "none", way_out)
            way_out = "learn.advantage=none takes no reward: use "
            require(not self.normalize_advantages, "learn.normalize_advantages", True, f"{way_out}null")
            require(not self.overlong_tokens, "learn.overlong_tokens", self.overlong_tokens, f"{way_out}0")

    def _check_response_clip(self) -> None:
        """A bound for single tokens would never be met by the mean over a response."""
        for name in ("clip_low", "clip_high"):
            bound, way_out = getattr(self, name), "gspo clips the mean ratio of a response: use null, or less than 0.1"
            require(self.loss != "gspo" or bound is None or bound < 0.1, f"learn.{name}", bound, way_out)

    @property
    def within_groups(self) -> bool:
        """A sample's reward is held against those of its prompt's other samples: where all are equal, none teaches."""
        return self.advantage in ("group", "leave_one_out")

    @property
    def normalizes(self) -> bool:
        """``normalize_advantages``, or what is published for ``advantage``."""
        default = self.advantage in ("group", "global")
        return default if self.normalize_advantages is None else self.normalize_advantages

    @property
    def kl_by(self) -> Literal["k1", "k3"]:
        """The estimate of the KL divergence that is usual for ``kl_in``."""
        return "k3" if self.kl_in == "loss" else "k1"

    @property
    def engine_rank(self) -> int:
        """Rank of the place that the engine has for adapters."""
        return next(rank for rank in ENGINE_RANKS if rank >= self.lora_rank)

    @property
    def own_reference(self) -> bool:
        """A reference policy is loaded: adapters need none for the policy as the run began, which they are beside."""
        return self.kl_coef > 0 and bool(self.reference or not self.lora_rank)

    @property
    def rank_tokens(self) -> int:
        """Tokens of a micro-batch that one rank computes, at most."""
        return -(-self.micro_batch_tokens // self.sequence_parallel)


@config_section
class CriticConfig:
    """The critic, and how its values become advantages; for ``learn.advantage=gae`` alone."""

    policy: str = ""
    """Checkpoint that it starts from, named as ``model.policy`` is and with the same tokenizer; "": the policy's."""
    lr: Number = Field(1e-5, gt=0)
    """Its peak learning rate, with the warm-up and the schedule of ``learn``."""
    warmup_steps: Whole = Field(0, ge=0)
    """Number of steps at the beginning that train the critic alone: the policy stays, and their samples are not kept.
    With ``lambda_policy`` at 1 an untrained critic is a constant baseline, which biases nothing, so 0 will do; below 1
    its errors are a bias, and 10 to 50 are published."""
    lambda_policy: Number = Field(1.0, ge=0, le=1)
    """GAE's lambda of the advantages that the policy is taught by."""
