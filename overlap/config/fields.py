"""Configuration: frozen dataclasses in the order in which a reader asks. Derived values are properties.

Every field's doc stands under it and names its unit; its bounds stand beside its default. ``load_config`` reads a YAML
file and ``key.sub=value`` overrides; unknown keys and impossible combinations raise
:class:`~overlap.errors.ConfigError` with the field, the value and the way out.

A resumed run must stay the run that it was: a field may change on the way only where it says ``may_change=True``.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from overlap.config.critic import CriticConfig
from overlap.config.rules import Section, above, at_least, at_temperature, check_section, free, require, share


@dataclass(frozen=True, slots=True)
class ModelConfig(Section):
    """Which policy is trained."""

    section: ClassVar[str] = "model"

    policy: str = "smollm2-135m-instruct"
    """"smollm2-135m-instruct" (comes with the set-up), a local Hugging Face directory, or a hub id."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number type of the engine's weights and of the learner's forward pass."""
    prompt_tokens: int = at_least(1, 512)
    """Longest prompt, tokens; longer ones are left out of the data and counted."""
    response_tokens: int = at_least(1, 256)
    """Longest response, tokens."""

    @property
    def context_tokens(self) -> int:
        """Longest sequence that engine and learner see, tokens."""
        return self.prompt_tokens + self.response_tokens


@dataclass(frozen=True, slots=True)
class DataConfig(Section):
    """What it is trained on."""

    section: ClassVar[str] = "data"

    task: str = "recipes.code_rl.task:CodeTask"
    """Import path "module:Class" of the task; a script passes its object to ``overlap.train(cfg, task)`` instead."""
    train: str = free("")
    """Problems to train on: a local JSONL/JSON/Parquet file or a hub id; "" lets the task choose. A resumed run finds
    the same problems by their contents, wherever the file lies."""
    heldout: str = free("")
    """Problems for the evaluation; "" lets the task choose."""
    tests_per_problem: int = at_least(1, 15)
    """At most this many tests of a problem are run in training, those with the longest inputs (DeepCoder). Held-out
    problems are judged by all of their tests, as published figures are."""
    preamble: Literal["contest", "none"] = "contest"
    """"contest": programs for contest formats find the imports that public graders put in front; "none": nothing."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs and tests may import, such as numpy; each makes runs slower."""
    max_bad_share: float = share(0.05, zero=True, may_change=True)
    """The run is refused when more than this share of a split's rows cannot be used. A long prompt is no bad row."""
    drop_solved: float = at_least(0, 0.0)
    """Prompts whose samples had a mean reward of so much or more are left out of later epochs (ScaleRL: 0.9); 0: none.
    The run ends where all would be left out."""


@dataclass(frozen=True, slots=True)
class RolloutConfig(Section):
    """How the engine samples."""

    section: ClassVar[str] = "rollout"

    groups_per_step: int = at_least(1, 8)
    """P: prompt groups in a step."""
    samples_per_group: int = at_least(1, 8)
    """G: samples per prompt."""
    temperature: float = at_temperature(1.0)
    """Sampling temperature; log-probs of engine and learner are taken at this temperature."""
    stop: tuple[str, ...] = ()
    """Strings that end a response (kept in its text)."""
    max_staleness: int = at_least(0, 0)
    """Oldest sample that the learner may see, in policy versions; 0 is on-policy."""
    landing: Literal["keep", "recompute", "drain"] = "recompute"
    """What new weights do to responses in the engine. "recompute": they go on under the new weights, which read all of
    their tokens anew; "keep": they go on with what the old ones made of their tokens, which is faster and leaves an
    error (``learn/landing_gap_mean``); "drain": the weights wait for their end, for five minutes at most, and new
    requests for the weights."""
    refill_groups: int = at_least(0, 0)
    """Up to so many groups of a step that teach nothing are replaced by further prompts in it (DAPO's dynamic
    sampling); 0: none."""
    max_sequences: int = at_least(1, 64, may_change=True)
    """Sequences that the engine decodes at once."""
    gpu_memory: float = share(0.6, may_change=True)
    """Share of a GPU's memory for the engine, 0 to 1. On a CPU the KV cache is derived from ``max_sequences``."""
    tensor_parallel: int = at_least(1, 1)
    """Devices per engine."""
    weight_backend: Literal["auto", "shm", "ipc", "nccl"] = free("auto")
    """How weights travel: shm (one host), ipc (engine and learner on the same GPUs), nccl (on different GPUs)."""
    parity_bound: float = at_least(0, 0.0, may_change=True)
    """How far engine and learner log-probs may differ after a sync, nats; 0: 0.05 in bfloat16, 1e-4 in float32.

    In bfloat16 99 % of the confident tokens keep it (of few, all but one), and the mean over all tokens twice it; in
    float32 all do.
    """


def check_sharing(backend: str, max_staleness: int) -> None:
    """Raise ConfigError where an engine that sleeps while the learner learns is to generate meanwhile.

    For a backend that "auto" may turn out to be, too: the engine asks once it has seen the machine.
    """
    way_out = (
        "the engine sleeps while the learner has its GPUs (weight_backend=ipc), so no sample is made ahead: use 0, "
    )
    way_out += "or weight_backend=nccl with rollout.tensor_parallel + learn.ranks GPUs"
    require(max_staleness == 0 or backend != "ipc", "rollout.max_staleness", max_staleness, way_out)


@dataclass(frozen=True, slots=True)
class VerifyConfig(Section):
    """How programs are judged."""

    section: ClassVar[str] = "verify"

    workers: int = at_least(1, 1, may_change=True)
    """Programs judged at once. At most the number of cores."""
    isolation: Literal["auto", "A", "B", "C"] = "auto"
    """Weakest isolation tier accepted; "auto" is the best of A and B that this machine has."""
    cpu_s: float = above(0, 4.0)
    """CPU time per test, s. Wall time is limited to three times that plus 2 s."""
    max_failure_share: float = share(0.05, zero=True, one=False, may_change=True)
    """The run stops when more than this share of the last 200 samples could not be judged for our own fault."""

    def __post_init__(self) -> None:
        check_section(self.section, self)
        cores = os.cpu_count() or 1
        way_out = f"this machine has {cores} cores; more workers make time limits depend on luck"
        require(self.workers <= cores, "verify.workers", self.workers, way_out)


@dataclass(frozen=True, slots=True)
class LearnConfig(Section):
    """How the policy is updated: GRPO+ of DeepCoder by default."""

    section: ClassVar[str] = "learn"

    ranks: int = at_least(1, 1, may_change=True)
    """Learner processes."""
    sequence_ranks: int = at_least(1, 1, may_change=True)
    """So many ranks share each sequence (DeepSpeed-Ulysses): a micro-batch is computed by all of them, a part of its
    tokens each. Divides ``ranks`` and the heads of the model."""
    zero_stage: Literal[1, 2, 3] = free(2)
    """DeepSpeed ZeRO stage. With 3 no rank ever holds a whole model: policy, critic and the KL penalty's reference are
    partitioned as they are read."""
    lr: float = above(0, 1e-6)
    """Peak learning rate."""
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
    share_prompts: Literal["auto", "never"] = free("auto")
    """"auto": responses of a group share one computation of their prompt, where that is less work; "never": each has
    its own. The loss is the same."""
    checkpointing: Literal["auto", "always", "never"] = free("auto")
    """Whether each layer is computed again in the backward pass, for a third more time. "auto": where a pass of
    ``micro_batch_tokens`` would keep more than 8 GiB of activations. The loss is the same."""
    clip_low: float | None = share(None, zero=True, one=False, why="use 0 to below 1: the ratio cannot be negative")
    """The surrogate's ratio is clipped to [1 - clip_low, 1 + clip_high]; null: 0.2 for ppo, 3e-4 for gspo. cispo has no
    lower bound, pg none at all."""
    clip_high: float | None = at_least(0, None)
    """See ``clip_low``; null: 0.28 for ppo (DAPO's clip-higher), 4 for cispo, 4e-4 for gspo."""
    kl_coef: float = at_least(0, 0.0)
    """Weight of the k3 KL penalty against the initial policy; 0 loads no reference policy."""
    entropy_coef: float = at_least(0, 0.0)
    """Weight of the entropy bonus."""
    advantage: Literal["group", "leave_one_out", "global", "gae"] = "group"
    """What a reward is held against. "group": the mean of its prompt's samples (GRPO); "leave_one_out": that of the
    others of them (RLOO); "global": mean and deviation of the step's samples (REINFORCE++); "gae": what a critic
    expects at each token (PPO), see the section ``critic``."""
    normalize_std: bool = True
    """With "group", divide by the standard deviation of the group's rewards (GRPO); False is Dr. GRPO."""
    truncated: Literal["mask", "zero", "bootstrap"] = "mask"
    """Samples that ran out of tokens before they ended. "mask": out of the loss (their rewards still count in means);
    "zero": learned from as if they had ended, with the reward that they got; "bootstrap", with "gae": the critic's
    value of their last token stands in the place of their reward, and that token is left out of the losses."""
    overlong_tokens: int = at_least(0, 0)
    """Responses in the last so many tokens before ``model.response_tokens`` are worth less, evenly down to 0.5 off at
    that limit (DAPO's soft overlong punishment, for rewards of 0 to 1); 0: none. ``reward/mean`` is without it.
    It is part of a cut off response's reward: out of the loss with it by "mask", replaced with it by "bootstrap"."""
    surrogate: Literal["ppo", "pg", "cispo", "gspo"] = "ppo"
    """What updates after the first one of a step are held to (with one update a step, all of them are the same).

    "ppo": each token's ratio to the policy before the step is clipped; "cispo": it is cut, but keeps its gradient
    (MiniMax-M1); "gspo": the mean ratio of the whole response is clipped (Qwen3); "pg": nothing, the correction alone
    (REINFORCE; with "tis" it is ScaleRL's form of CISPO). DPPO's mask is ``correction="dppo"``.
    """
    correction: Literal["tis", "mis", "seq_mis", "decoupled", "dppo", "none"] = "tis"
    """What makes samples of another policy count as those of the learner's: a weight by the learner/engine ratio.

    "tis": token ratios, cut at ``is_cap``; "mis": token ratios, 0 outside [1 / ``is_cap``, ``is_cap``] (IcePop);
    "seq_mis": the ratio of the whole response, 0 over ``is_cap`` (TRL, verl); "decoupled": token ratios, 0 over
    ``is_cap``, around the policy before the step (AReaL); "dppo": token ratios, 0 by ``tv_bound`` (prime-rl), with
    ``surrogate="pg"``; "none": 1, stale samples count as if they were fresh (the plan says so).
    """
    is_cap: float = at_least(0, 2.0)
    """Largest learner/engine ratio of ``correction``. Published: 2 for tis, 2 to 3 for seq_mis, 5 for decoupled."""
    tv_bound: float = share(0.2)
    """How far a token's probability may have moved from the engine's before dppo masks what moves it further."""

    def __post_init__(self) -> None:
        check_section(self.section, self)
        way_out = f"ranks that share a sequence come in whole groups: use a divisor of learn.ranks={self.ranks}"
        require(self.ranks % self.sequence_ranks == 0, "learn.sequence_ranks", self.sequence_ranks, way_out)
        way_out = "the critic reads whole sequences: use 1, or another learn.advantage than gae"
        require(
            self.sequence_ranks == 1 or self.advantage != "gae", "learn.sequence_ranks", self.sequence_ranks, way_out
        )
        how, cap, surrogate = self.correction, self.is_cap, self.surrogate
        require(cap > 0 or how != "tis", "learn.is_cap", cap, "use 2.0; without a correction, learn.correction=none")
        masks = how in ("mis", "seq_mis", "decoupled")
        require(cap > 1 or not masks, "learn.is_cap", cap, f"{how} masks what is over it: use a number above 1")
        way_out = "dppo stands in the place of a clip: use learn.surrogate=pg, or another learn.correction"
        require(how != "dppo" or surrogate == "pg", "learn.surrogate", surrogate, way_out)
        way_out = "decoupled needs the policy before the step: use learn.surrogate=ppo, or learn.correction=mis"
        require(how != "decoupled" or surrogate != "pg", "learn.surrogate", surrogate, way_out)
        lone = how == "none" and surrogate == "pg" and self.updates_per_step > 1
        way_out = "nothing bounds the updates after the first: use learn.surrogate=ppo, or learn.correction=tis"
        require(not lone, "learn.surrogate", surrogate, way_out)
        way_out = "only a critic knows what a cut off sample was worth: use mask or zero, or learn.advantage=gae"
        require(self.truncated != "bootstrap" or self.advantage == "gae", "learn.truncated", self.truncated, way_out)
        self._check_response_clip()

    def _check_response_clip(self) -> None:
        """A bound for single tokens would never be met by the mean over a response."""
        for name in ("clip_low", "clip_high"):
            bound, way_out = getattr(self, name), "gspo clips the mean ratio of a response: use null, or less than 0.1"
            require(self.surrogate != "gspo" or bound is None or bound < 0.1, f"learn.{name}", bound, way_out)

    @property
    def within_groups(self) -> bool:
        """A sample's reward is held against those of its prompt's other samples: where all are equal, none teaches."""
        return self.advantage in ("group", "leave_one_out")

    @property
    def rank_tokens(self) -> int:
        """Tokens of a micro-batch that one rank computes, at most."""
        return -(-self.micro_batch_tokens // self.sequence_ranks)


@dataclass(frozen=True, slots=True)
class RunConfig(Section):
    """The run itself."""

    section: ClassVar[str] = "run"

    steps: int = at_least(1, 40, may_change=True)
    """Learner steps."""
    dir: str = free("runs/latest")
    """Run directory; "{time}" is replaced by the start time. Refused unless it is new, empty, or a failed start's."""
    seed: int = at_least(0, 0)
    """Seed of data order, engine and learner."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where engine and learner run."""
    stall_s: float = above(0, 1800.0, may_change=True)
    """When no sample has ended for so long, s, those that hang are begun again, and the next time given up by name."""
    eval_samples: int = at_least(0, 4, may_change=True)
    """Samples per held-out problem in an evaluation, before and after the training; 0 leaves it out."""
    eval_every: int = at_least(0, 0, may_change=True)
    """Steps between evaluations during the training, which also keep the best policy; 0: none."""
    eval_k: int = at_least(0, 0, may_change=True)
    """k of the pass@k that is told beside pass@1, at most ``eval_samples``; 0: ``eval_samples``."""
    eval_temperature: float | None = at_temperature(None, zero=True, may_change=True)
    """Sampling temperature of evaluations, 0 for greedy answers; null: ``rollout.temperature``."""
    save_every: int = at_least(0, 0, may_change=True)
    """Steps between checkpoints of the learner's state; 0: only the final policy is saved."""
    keep_last: int = at_least(1, 2, may_change=True)
    """Checkpoints that stay, the newest; one that the best policy came from stays beside them."""
    keep_rollouts: bool = free(False)
    """Keep every sample that a step takes whole in ``rollouts.jsonl``, about 11 bytes and the text per token, for
    ``overlap train --from-rollouts``."""
    restarts: int = at_least(0, 2, may_change=True)
    """How often a run whose learner died goes back to its newest checkpoint by itself."""

    def __post_init__(self) -> None:
        check_section(self.section, self)
        samples, k, greedy = self.eval_samples, self.eval_k, self.eval_temperature == 0
        require(samples > 0 or not self.eval_every, "run.eval_samples", samples, "run.eval_every needs 1 or more")
        require(k <= samples, "run.eval_k", k, f"pass@k needs k samples: use at most run.eval_samples={samples}")
        way_out = "greedy answers (run.eval_temperature=0) to a problem are all the same: use 1"
        require(samples <= 1 or not greedy, "run.eval_samples", samples, way_out)


@dataclass(frozen=True, slots=True)
class Config:
    """A whole run. ``overlap.load_config`` builds one from YAML and overrides."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    learn: LearnConfig = field(default_factory=LearnConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        """Rules between sections; what concerns one alone is checked where it stands."""
        r, le, context = self.rollout, self.learn, self.model.context_tokens
        require(
            self.run.device != "cpu" or r.weight_backend in ("auto", "shm"),
            "rollout.weight_backend",
            r.weight_backend,
            "ipc and nccl need CUDA: use shm or auto with run.device=cpu",
        )
        check_sharing(r.weight_backend, r.max_staleness)
        way_out = (
            "a group needs 2 or more samples to have an advantage; one is enough with learn.advantage=gae or global"
        )
        require(r.samples_per_group > 1 or not le.within_groups, "rollout.samples_per_group", 1, way_out)
        if le.advantage != "gae":
            self.critic.refuse_unused()
        alone, way_out = (
            self.critic.steps_alone,
            f"the policy would learn in none of run.steps={self.run.steps}: use less",
        )
        require(alone < self.run.steps, "critic.steps_alone", alone, way_out)
        require(
            le.updates_per_step <= r.groups_per_step,
            "learn.updates_per_step",
            le.updates_per_step,
            f"a mini-batch holds whole groups: use at most rollout.groups_per_step={r.groups_per_step}",
        )
        require(
            le.micro_batch_tokens >= context,
            "learn.micro_batch_tokens",
            le.micro_batch_tokens,
            f"one sequence has up to {context} tokens (model.prompt_tokens + model.response_tokens)",
        )
        way_out = f"a response has up to model.response_tokens={self.model.response_tokens}: use less than that"
        require(le.overlong_tokens < self.model.response_tokens, "learn.overlong_tokens", le.overlong_tokens, way_out)
        bounded = le.advantage == "gae" and self.critic.bounded
        way_out = "it takes rewards below 0, where no bounded value lies: use critic.bounded=false, or 0"
        require(not (le.overlong_tokens and bounded), "learn.overlong_tokens", le.overlong_tokens, way_out)
        drop, way_out = self.data.drop_solved, "one sample says too little of a prompt: use 0, or 2 or more samples"
        require(not drop or r.samples_per_group > 1, "data.drop_solved", drop, way_out)

    @property
    def leases(self) -> int:
        """Groups that may be between admission and the arrival of their weights."""
        return (self.rollout.max_staleness + 1) * self.rollout.groups_per_step

    @property
    def samples_per_step(self) -> int:
        """P x G."""
        return self.rollout.groups_per_step * self.rollout.samples_per_group

    @property
    def eval_k(self) -> int:
        """k of the pass@k beside pass@1."""
        return self.run.eval_k or self.run.eval_samples

    @property
    def eval_temperature(self) -> float:
        """Sampling temperature of evaluations."""
        return self.rollout.temperature if self.run.eval_temperature is None else self.run.eval_temperature

    @property
    def parity_bound(self) -> float:
        """``rollout.parity_bound`` or its default for the policy's number type, nats."""
        default = 0.05 if self.model.dtype == "bfloat16" else 1e-4
        return self.rollout.parity_bound or default

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dict, as written to ``config.yaml``."""
        return asdict(self)
