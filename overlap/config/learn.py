"""How policy and critic learn: the sections ``learn`` and ``critic``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from overlap.config.foreign import ADVANTAGES
from overlap.config.rules import ImportPath, Section, above, at_least, bounded_by, free, require

Truncated = Literal["mask", "zero", "bootstrap"]
ENGINE_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM has places for (``max_lora_rank``)."""


@dataclass(frozen=True, slots=True)
class LearnConfig(Section):
    """How the policy is updated: GRPO+ of DeepCoder by default."""

    ranks: int = at_least(1, 1, may_change=True)
    """Learner processes."""
    sequence_parallel: int = at_least(1, 1, may_change=True)
    """So many ranks share each sequence (Ulysses, Jacobs et al. 2023): all of them compute a micro-batch, a part of its
    tokens each. Divides ``ranks`` and the heads of the model."""
    zero_stage: Literal[1, 2, 3] = free(2)
    """ZeRO stage. With 3 no rank ever holds a whole model: policy, critic and the KL penalty's reference are
    partitioned as they are read."""
    offload: Literal["none", "sleep", "cpu"] = free("none")
    """What of the learner is in host memory. "none": nothing; "sleep": where engine and learner share GPUs, whatever of
    policy and critic is not at work: all of both while the engine generates, and one while the other learns; "cpu":
    that, and always the optimizer with its float32 weights, which takes its step on the CPU (ZeRO-Offload):
    slow, and 12 bytes less on a GPU for each parameter. The steps are the same."""
    lr: float = above(0, 1e-6)
    """Peak learning rate."""
    lora_rank: int = at_least(0, 0)
    """Rank r of the adapters (LoRA) that are trained in the weights' place, on all linear layers of the decoder, with
    alpha = 2 r; 0: all weights are trained. Adapters take an ``lr`` about 10 times as large (Schulman et al. 2025). A
    critic is trained whole."""
    lora_sync: Literal["adapter", "merged"] | None = free(None)
    """What the engine gets of adapters. "adapter": them alone, which it computes beside the policy as the run began
    (vLLM's LoRA support; up to rank 512); "merged": all weights with the adapters in them, with which the engine is
    faster, but in bfloat16 most of the first changes are lost (``sync/applied_share``). null: adapter in bfloat16; in
    float32, where nothing is lost, merged."""
    warmup_steps: int = at_least(0, 0)
    """Optimizer steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up; linear and cosine end at 0 with the run."""
    weight_decay: float = at_least(0, 0.0)
    """AdamW weight decay."""
    grad_clip: float = above(0, 1.0)
    """Largest global gradient norm."""
    updates_per_step: int = at_least(1, 1)
    """Optimizer steps per batch (mini-batches of whole groups)."""
    micro_batch_tokens: int = at_least(1, 8192, may_change=True)
    """Tokens, padding included, in one forward-backward pass."""
    checkpointing: Literal["auto", "always", "never"] = free("auto")
    """Whether each layer is computed again in the backward pass, for a third more time. "auto": where a pass of
    ``micro_batch_tokens`` would keep more than 8 GiB of activations. The loss is the same."""
    compile: Literal["auto", "always", "never"] = free("auto")
    """Whether norms, rotary embeddings, gated layers and the log-probs of the output layer are compiled by
    ``torch.compile``: few kernels in the place of many, which round less often. "auto": on GPUs, where a C++ compiler
    and Triton are (else the learner's log says what is missing); "always": on a CPU too, or the run is refused."""
    clip_low: float | None = bounded_by(
        None, lambda low: 0 <= low < 1, "use 0 to below 1: the ratio cannot be negative"
    )
    """The ratio in the loss is clipped to [1 - clip_low, 1 + clip_high]; null: 0.2 for ppo (and a function of your
    own), 3e-4 for gspo. cispo has no lower bound, pg none at all."""
    clip_high: float | None = at_least(0, None)
    """See ``clip_low``; null: 0.28 for ppo (DAPO's clip-higher; and a function of your own), 4 for cispo, 4e-4 for
    gspo."""
    dual_clip: float | None = above(1, None)
    """With the loss "ppo": the largest ratio that counts against a token whose advantage is below 0. A token beyond it
    has no gradient (dual-clip PPO, Ye et al. 2020; verl has 3). null: there is no such bound."""
    kl_coef: float = at_least(0, 0.0)
    """Weight of the penalty for the KL divergence from the reference policy, in nats; 0 loads none."""
    reference: str = ""
    """Checkpoint of the reference policy, named as ``model.policy`` is; its size is free, its tokenizer is the
    policy's. "": the policy as the run began. A stronger one here, with ``advantage=none`` and ``kl_coef=1``, teaches
    the policy on its own samples (distillation)."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the penalty stands. "loss": its estimate is a term of the loss (GRPO); "reward": the estimate by the policy
    before the step is taken off each token's reward, and from there gets into advantages: of "gae" by the critic (PPO
    of RLHF), of "none" into the token's own alone, of all others also into those of the tokens before it."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimate by the sampled token, with d its log-prob by the policy less that by the reference: "k1": d; "k2":
    d^2 / 2; "k3": exp(-d) - 1 + d (Schulman 2020). k1 in the reward and k2 in the loss have the gradient of
    KL(policy || reference), k3 in the loss that of KL(reference || policy). null: k3 in the loss, k1 in the reward."""
    entropy_coef: float = at_least(0, 0.0)
    """Weight of the entropy bonus."""
    advantage: Literal["group", "leave_one_out", "global", "gae", "none"] | ImportPath = "group"
    """What a reward is held against. "group": the mean of its prompt's samples (GRPO); "leave_one_out": that of the
    others of them (RLOO); "global": mean and deviation of the step's samples (REINFORCE++); "gae": what a critic
    expects at each token (PPO), see the section ``critic``; "none": rewards teach nothing and are only reported, the KL
    penalty alone teaches (distillation). A function of your own:
    ``overlap.pipeline.advantage.GroupAdvantage``."""
    normalize_advantages: bool | None = None
    """Whether advantages are divided by their standard deviation: within the prompt's group (false: Dr. GRPO), within
    the step for "global" and "gae" (which is centred too). null: for "group" and "global"; never for
    "leave_one_out"."""
    truncated: Truncated = "mask"
    """Samples that ran out of tokens before they ended. "mask": out of the loss (their rewards still count in means);
    "zero": learned from as if they had ended, with the reward that they got; "bootstrap", with "gae": the critic's
    value of their last token stands in the place of their reward, and that token is left out of the losses."""
    overlong_tokens: int = at_least(0, 0)
    """Responses in the last so many tokens before ``model.response_tokens`` are worth less, evenly down to 0.5 off at
    that limit (DAPO's soft overlong punishment, for rewards of 0 to 1); 0: none. ``reward/mean`` is without it.
    It is part of a cut off response's reward: out of the loss with it by "mask", replaced with it by "bootstrap".
    An episode has one reward and responses of many lengths, so there it must be 0."""
    loss: Literal["ppo", "pg", "cispo", "gspo"] | ImportPath = "ppo"
    """What updates after the first one of a step are held to (with one update a step, all of them are the same).

    "ppo": each token's ratio to the policy before the step is clipped; "cispo": it is cut, but keeps its gradient
    (MiniMax-M1); "gspo": the mean ratio of the whole response is clipped (Qwen3); "pg": nothing, the correction alone
    (REINFORCE; with "tis" it is ScaleRL's form of CISPO). DPPO's mask is ``correction="dppo"``. A function of your own:
    ``overlap.learner.losses.PolicyLoss``.
    """
    correction: Literal["tis", "mis", "seq_mis", "decoupled", "dppo", "none"] | ImportPath = "tis"
    """What makes samples of another policy count as those of the learner's: a weight by the learner/engine ratio.

    "tis": token ratios, cut at ``correction_bound`` b; "mis": token ratios, 0 outside [1 / b, b] (IcePop); "seq_mis":
    the ratio of the whole response, in an episode that of each branch, 0 over b (TRL); "decoupled": token ratios, 0
    over b, around the policy before the step (AReaL); "dppo": token ratios up to 20, 0 where a probability moved by
    more than b (prime-rl, verl), with ``loss="pg"``; "none": 1, stale samples count as if they were fresh (the plan
    says so). A function of your own: ``overlap.learner.correction.TokenCorrection``.
    """
    correction_bound: float | None = above(0, None)
    """Largest learner/engine ratio of ``correction``; for "dppo" how far a token's probability may have moved from the
    engine's, at most 1. null: as published, 2 for tis, mis and seq_mis (and a function of your own), 5 for decoupled,
    0.2 for dppo."""

    def __post_init__(self) -> None:
        if algorithm := ADVANTAGES.get(str(self.advantage).lower()):
            require(False, "learn.advantage", self.advantage, f"here that is learn.advantage={algorithm}")
        self.check()
        way_out = f"ranks that share a sequence come in whole groups: use a divisor of learn.ranks={self.ranks}"
        require(self.ranks % self.sequence_parallel == 0, "learn.sequence_parallel", self.sequence_parallel, way_out)
        way_out = "the critic reads whole sequences: use 1, or another learn.advantage than gae"
        whole = self.sequence_parallel == 1 or self.advantage != "gae"
        require(whole, "learn.sequence_parallel", self.sequence_parallel, way_out)
        how, loss = self.correction, self.loss
        self._check_bound()
        group, way_out = self.advantage == "leave_one_out", "RLOO divides by nothing: use null, or another advantage"
        require(not (group and self.normalize_advantages), "learn.normalize_advantages", True, way_out)
        way_out = "dppo stands in the place of a clip: use learn.loss=pg, or another learn.correction"
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
        way_out = "it is for adapters: use learn.lora_rank above 0, or null"
        require(self.lora_sync is None or self.lora_rank > 0, "learn.lora_sync", self.lora_sync, way_out)
        way_out = f"the engine takes adapters up to rank {ENGINE_RANKS[-1]}: use merged, or a lower learn.lora_rank"
        fits = self.lora_sync != "adapter" or self.lora_rank <= ENGINE_RANKS[-1]
        require(fits, "learn.lora_sync", self.lora_sync, way_out)
        way_out = "it bounds the ratio of ppo: use learn.loss=ppo, or null"
        require(self.dual_clip is None or loss == "ppo", "learn.dual_clip", self.dual_clip, way_out)

    def _check_bound(self) -> None:
        how, bound = self.correction, self.correction_bound
        if bound is None:
            return
        require(how != "none", "learn.correction_bound", bound, "learn.correction=none bounds nothing: use null")
        above = 1 if how in ("mis", "seq_mis", "decoupled") else 0
        way_out = f"{how} masks what is over it: use a number above 1, or null"
        require(bound > above, "learn.correction_bound", bound, way_out)
        way_out = "dppo bounds a difference of probabilities: use a share above 0 and at most 1, or null"
        require(how != "dppo" or bound <= 1, "learn.correction_bound", bound, way_out)

    def _check_kl(self) -> None:
        """What the KL penalty cannot do, and what nothing is taught by."""
        way_out = 'nothing is held against it: use learn.kl_coef above 0, or ""'
        require(not self.reference or self.kl_coef > 0, "learn.reference", self.reference, way_out)
        way_out = (
            "in the loss its gradient is 0 in the mean: use k2 (the gradient of the same KL) or k3, or kl_in=reward"
        )
        require((self.kl_in, self.kl_estimator) != ("loss", "k1"), "learn.kl_estimator", self.kl_estimator, way_out)
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
    def kl_by(self) -> Literal["k1", "k2", "k3"]:
        """``kl_estimator``, or what is usual for ``kl_in``."""
        return self.kl_estimator or ("k3" if self.kl_in == "loss" else "k1")

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


@dataclass(frozen=True, slots=True)
class CriticConfig(Section):
    """What a critic is and how its values become advantages; for ``learn.advantage=gae`` alone."""

    policy: str = ""
    """Checkpoint that it starts from, named as ``model.policy`` is and with the same tokenizer; "": the policy's."""
    lr: float = above(0, 1e-5)
    """Its peak learning rate, with the warm-up and the schedule of ``learn``."""
    warmup_steps: int = at_least(0, 0)
    """So many steps at the beginning train the critic alone: the policy stays, and their samples are not kept. With
    ``lambda_policy`` at 1 an untrained critic is a constant baseline, which biases nothing, so 0 will do; below 1 its
    errors are a bias, and 10 to 50 are published."""
    bounded: bool = True
    """Values are held between 0 and 1 (by atan), where rewards of tests lie; a reward beyond is refused."""
    lambda_policy: float = at_least(0, 1.0, most=1)
    """GAE's lambda of the advantages that the policy is taught by."""
    alpha: float = at_least(0, 0.0)
    """Above 0, ``lambda_policy`` is 1 - 1 / (alpha l) for a response of l tokens (VAPO: 0.05); 0: as it is given."""

    def __post_init__(self) -> None:
        self.check()
        way_out = f"critic.alpha={self.alpha:g} sets it by each response's length: leave it at 1, or use critic.alpha=0"
        require(not self.alpha or self.lambda_policy == 1, "critic.lambda_policy", self.lambda_policy, way_out)
