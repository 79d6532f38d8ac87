"""Configuration: frozen dataclasses in the order in which a reader asks. Derived values are properties.

Every field's doc stands under it and names its unit; its bounds stand beside its default. ``load_config`` reads a YAML
file and ``key.sub=value`` overrides; unknown keys and impossible combinations raise
:class:`~overlap.errors.ConfigError` with the field, the value and the way out.

A resumed run must stay the run that it was: a field may change on the way only where it says ``may_change=True``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast

from overlap.config.learn import ENGINE_RANKS, CriticConfig, LearnConfig
from overlap.config.rollout import EpisodeConfig, RolloutConfig, check_sharing
from overlap.config.rules import IMPORT_PATH, Overrides, Section, above, at_least, free, require
from overlap.errors import count_of, near_or_all
from sandbox.pool.quotas import cores


@dataclass(frozen=True, slots=True)
class ModelConfig(Section):
    """Which policy is trained."""

    policy: str = "smollm2-135m-instruct"
    """"smollm2-135m-instruct" (comes with the set-up), a local Hugging Face directory, or a hub id."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Number type of the engine's weights and of the learner's forward pass. "auto": bfloat16 on GPUs and on processors
    that multiply in it (AMX, Arm with bf16), float32 on others; ``config.yaml`` of a run has what it took."""
    prompt_tokens: int = at_least(1, 512)
    """Longest prompt, tokens; longer ones are left out of the data and counted."""
    response_tokens: int = at_least(1, 256)
    """Longest response, tokens; of an episode of several turns, the longest of each."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Variables for the chat template wherever it renders, as a mapping: ``{enable_thinking: false}`` for Qwen3. A
    request of an agent program may repeat it, and may not differ from it."""


@dataclass(frozen=True, slots=True)
class DataConfig(Section):
    """What it is trained on."""

    task: str = "recipes.code_rl.task:CodeTask"
    """Import path "module:Class" of the task; a script passes its object to ``overlap.train(cfg, task)`` instead."""
    train: str = free("")
    """Problems to train on: a local JSONL/JSON/Parquet file or a hub id; "" lets the task choose. A resumed run finds
    the same problems by their contents, wherever the file lies."""
    heldout: str = free("")
    """Problems for the evaluation; "" lets the task choose."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the task lets be set, as a mapping; the task's ``options`` class has names, types and defaults. Of code_rl:
    "tests_per_problem", "preamble", "packages", "time_factor", "cpu_s_most", "memory_mib_most" and "incomplete_tests".
    """
    max_bad_share: float = at_least(0, 0.05, most=1, may_change=True)
    """The run is refused when more than this share of a split's rows cannot be used. A long prompt is no bad row."""
    drop_solved: float = at_least(0, 0.0)
    """Prompts whose samples had a mean reward of so much or more are left out of later epochs (ScaleRL: 0.9); 0: none.
    The run ends where all would be left out."""


@dataclass(frozen=True, slots=True)
class VerifyConfig(Section):
    """How programs are judged."""

    workers: int = at_least(1, 1, may_change=True)
    """Programs judged at once on this machine, at most the number of cores that this process may use (by its affinity
    and its container's quota); each further node of a cluster judges with all of its cores that are free."""
    isolation: Literal["auto", "A", "B", "C"] = "auto"
    """Weakest isolation tier accepted; "auto" is the best of A and B that this machine has."""
    cpu_s: float = above(0, 4.0)
    """CPU time per test, s. Wall time is limited to three times that plus 2 s."""

    def __post_init__(self) -> None:
        self.check()
        here = cores()
        way_out = f"more than the {count_of(here, 'core')} that this process may use make time limits unreliable"
        require(self.workers <= here, "verify.workers", self.workers, f"{way_out}: use {here} or less")


TRACKERS = ("tensorboard", "wandb", "trackio")
"""What ``run.trackers`` may name by one word."""


@dataclass(frozen=True, slots=True)
class RunConfig(Section):
    """The run itself."""

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
    """Samples k per held-out problem in an evaluation, before and after the training, which tells pass@1 and pass@k;
    0 leaves it out."""
    eval_every: int = at_least(0, 0, may_change=True)
    """Steps between evaluations during the training, which also keep the best policy; 0: none."""
    eval_temperature: float | None = at_least(0, None, most=2, may_change=True)
    """Sampling temperature of evaluations, 0 for greedy answers; null: ``rollout.temperature``."""
    save_every: int = at_least(0, 0, may_change=True)
    """Steps between checkpoints of the learner's state; 0: only the final policy is saved."""
    keep_last: int = at_least(1, 2, may_change=True)
    """Checkpoints that stay, the newest; one that the best policy came from stays beside them."""
    keep_rollouts: bool = free(False)
    """Keep every sample that a step takes whole in ``rollouts.jsonl``, about 11 bytes and the text per token, for
    ``overlap train --from-rollouts``."""
    samples: Literal["some", "all", "none"] = free("some")
    """Samples that ``trajectories.jsonl`` keeps for people to look at: some whole groups of each step and evaluation
    (``docs/samples.md`` says which), all, or none."""
    restarts: int = at_least(0, 2, may_change=True)
    """How often a run whose learner died goes back to its newest checkpoint by itself."""
    callbacks: tuple[str, ...] = free(())
    """Classes of callbacks, as import paths "module:Class", each made without arguments; beside those that
    ``overlap.train(cfg, callbacks=[...])`` gets."""
    trackers: tuple[str, ...] = free(("tensorboard",))
    """Where the rows of ``metrics.jsonl`` go too: tensorboard (in the run's directory), wandb, trackio, or a class of
    yours, "module:Class" (``docs/trackers.md``)."""

    def __post_init__(self) -> None:
        self.check()
        self._check_trackers()
        samples, greedy = self.eval_samples, self.eval_temperature == 0
        require(samples > 0 or not self.eval_every, "run.eval_samples", samples, "run.eval_every needs 1 or more")
        way_out = "greedy answers (run.eval_temperature=0) to a problem are all the same: use 1"
        require(samples <= 1 or not greedy, "run.eval_samples", samples, way_out)

    def _check_trackers(self) -> None:
        names = self.trackers
        for name in names:
            require(
                name in TRACKERS or IMPORT_PATH.fullmatch(name) is not None,
                "run.trackers",
                name,
                f"is no tracker; {near_or_all(name, TRACKERS, 'use some of {}, or my_module:MyTracker')}",
            )
            require(names.count(name) == 1, "run.trackers", name, "stands there twice: name it once")
        for path in self.callbacks:
            require(IMPORT_PATH.fullmatch(path) is not None, "run.callbacks", path, 'use "my_module:MyCallback"')


@dataclass(frozen=True, slots=True)
class ClusterConfig(Section):
    """A Ray cluster whose nodes work for the run; without an address nothing but this machine does."""

    address: str = free("")
    """Where its head listens, "host:port"; "": this machine alone, and Ray is not needed. A cluster that asks for no
    token is joined with RAY_AUTH_MODE=disabled in the environment only."""


@dataclass(frozen=True, slots=True)
class Config:
    """A whole run. ``overlap.load_config`` builds one from YAML and overrides."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    episode: EpisodeConfig = field(default_factory=EpisodeConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    learn: LearnConfig = field(default_factory=LearnConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    run: RunConfig = field(default_factory=RunConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        """Rules between sections; what concerns one alone is checked where it stands."""
        for section in fields(self):
            found, kind = getattr(self, section.name), cast(type, section.default_factory)
            example = f"overlap.load_config(None, {{'{section.name}': {{...}}}}) takes mappings"
            require(isinstance(found, kind), section.name, found, f"give a {kind.__name__}; {example}")
        r, le, context, one = self.rollout, self.learn, self.context_tokens, self.model.response_tokens
        tokens, steps, gae, groups = self.episode.tokens, self.run.steps, le.advantage == "gae", r.groups_per_step
        way_out = f"one response may have {one}: use that or more, or 0"
        require(not tokens or tokens >= one, "episode.tokens", tokens, way_out)
        no_gpu = self.run.device == "cpu" and r.weight_backend not in ("auto", "shm")
        way_out = "ipc and nccl need CUDA: use shm or auto with run.device=cpu"
        require(not no_gpu, "rollout.weight_backend", r.weight_backend, way_out)
        check_sharing(r.weight_backend, r)
        way_out = "a group needs 2 or more samples to have an advantage; 1 is enough with learn.advantage=gae or global"
        require(r.samples_per_group > 1 or not le.within_groups, "rollout.samples_per_group", 1, way_out)
        for name, value in () if gae else self.critic.given():
            require(False, name, value, "there is a critic with learn.advantage=gae alone")
        alone, way_out = self.critic.warmup_steps, f"the policy would learn in none of run.steps={steps}: use less"
        require(alone < steps, "critic.warmup_steps", alone, way_out)
        way_out = f"a mini-batch holds whole groups: use at most rollout.groups_per_step={groups}"
        require(le.updates_per_step <= groups, "learn.updates_per_step", le.updates_per_step, way_out)
        way_out = f"one sequence has up to {context} tokens (prompt and response, section model): use {context} or more"
        require(le.micro_batch_tokens >= context, "learn.micro_batch_tokens", le.micro_batch_tokens, way_out)
        way_out = f"a response has up to model.response_tokens={one}: use less than that"
        require(le.overlong_tokens < one, "learn.overlong_tokens", le.overlong_tokens, way_out)
        bounded = gae and self.critic.bounded
        way_out = "it takes rewards below 0, where no bounded value lies: use critic.bounded=false, or 0"
        require(not (le.overlong_tokens and bounded), "learn.overlong_tokens", le.overlong_tokens, way_out)
        way_out = "a KL in the reward takes it below 0, where no bounded value lies: use critic.bounded=false, or "
        way_out += "learn.kl_in=loss"
        require(not (bounded and le.kl_coef > 0 and le.kl_in == "reward"), "critic.bounded", True, way_out)
        drop, way_out = self.data.drop_solved, "one sample says too little of a prompt: use 0, or 2 or more samples"
        require(not drop or r.samples_per_group > 1, "data.drop_solved", drop, way_out)

    @property
    def behind_prompt(self) -> int:
        """Tokens that may follow a prompt."""
        return max(self.model.response_tokens, self.episode.tokens)

    @property
    def context_tokens(self) -> int:
        """Longest sequence that engine and learner see, tokens."""
        return self.model.prompt_tokens + self.behind_prompt

    @property
    def leases(self) -> int:
        """Groups that may be between admission and the arrival of their weights."""
        return (self.rollout.max_staleness + 1) * self.rollout.groups_per_step

    @property
    def samples_per_step(self) -> int:
        """P x G."""
        return self.rollout.groups_per_step * self.rollout.samples_per_group

    @property
    def eval_temperature(self) -> float:
        """Sampling temperature of evaluations."""
        return self.rollout.temperature if self.run.eval_temperature is None else self.run.eval_temperature

    @property
    def dtype(self) -> Literal["bfloat16", "float32"]:
        """``model.dtype``; bfloat16 for an "auto" that no machine has settled yet (``placement.with_dtype``)."""
        return "bfloat16" if self.model.dtype == "auto" else self.model.dtype

    @property
    def sends_adapter(self) -> bool:
        """Adapters go to the engine alone: by ``learn.lora_sync``, or where merged weights would lose changes."""
        learn, loses = self.learn, self.dtype == "bfloat16"
        fits = 0 < learn.lora_rank <= ENGINE_RANKS[-1]
        return fits and (learn.lora_sync or ("adapter" if loses else "merged")) == "adapter"

    @property
    def parity_bound(self) -> float:
        """``rollout.parity_bound`` or its default for the policy's number type, nats."""
        default = 0.05 if self.dtype == "bfloat16" else 5e-4
        return self.rollout.parity_bound or default

    def replace(self, overrides: Overrides = (), /, **sections: Mapping[str, Any]) -> Config:
        """Another configuration with other values of some fields, by the ``overrides`` of :func:`overlap.load_config`
        or by section: ``cfg.replace({"learn.lr": 2e-5})`` is ``cfg.replace(learn={"lr": 2e-5})``. Raises ConfigError.
        """
        from overlap.config.load import replaced

        return replaced(replaced(self, overrides), sections)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dict, as written to ``config.yaml``."""
        return asdict(self)
