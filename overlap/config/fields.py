"""Configuration: frozen dataclasses in the order in which a reader asks. Derived values are properties.

The doc of every field is below it and names its unit; its bounds are beside its default. ``load_config`` reads a YAML
file and ``key.sub=value`` overrides; unknown keys and impossible combinations raise
:class:`~overlap.core.errors.ConfigError` with the field, the value and the way out.

A resumed run must stay the run that it was: a field may change on the way only where it is ``resumable``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from overlap.config.learn import CriticConfig, LearnConfig
from overlap.config.rollout import EpisodeConfig, RolloutConfig
from overlap.config.rules import (
    IMPORT_PATH,
    Number,
    Overrides,
    Text,
    Whole,
    config_section,
    given_fields,
    named_values,
    require,
    resumable,
)
from overlap.core.errors import count_of, near_or_all
from sandbox.pool.quotas import cores


@config_section
class ModelConfig:
    """Which policy is trained."""

    policy: str = "smollm2-135m-instruct"
    """"smollm2-135m-instruct" (comes with the set-up), a local Hugging Face directory, or a hub id."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Number type of the engine's weights and of the learner's forward pass. "auto": bfloat16 on GPUs and on processors
    that multiply in it (AMX, Arm with bf16), float32 on others; ``config.yaml`` of a run has what it took."""
    prompt_tokens: Whole = Field(512, ge=1)
    """Longest prompt, tokens; longer ones are left out of the data and counted."""
    response_tokens: Whole = Field(256, ge=1)
    """Longest response, tokens; of an episode of several turns, the longest of each."""
    chat_template_kwargs: dict[str, Any] = named_values()
    """Variables for the chat template wherever it renders, as a mapping: ``{enable_thinking: false}`` for Qwen3. A
    request of an agent program may repeat it, and may not differ from it."""


@config_section
class DataConfig:
    """Data that the policy is trained on."""

    task: str = "recipes.code_rl.task:CodeTask"
    """Import path "module:Class" of the task; a script passes its object to ``overlap.train(cfg, task)`` instead."""
    train: str = resumable("")
    """Problems to train on: a local JSONL/JSON/Parquet file or a hub id; "" lets the task choose. A resumed run finds
    the same problems by their contents, wherever the file is."""
    heldout: str = resumable("")
    """Problems for the evaluation; "" lets the task choose."""
    options: dict[str, Any] = named_values()
    """Options of the task, as a mapping; the task's ``options`` class has names, types and defaults. For code_rl:
    "tests_per_problem", "preamble", "packages", "time_factor", "cpu_s_most", "memory_mib_most" and "incomplete_tests".
    """
    drop_solved: Number = Field(0.0, ge=0)
    """Prompts whose samples had a mean reward of this or more are left out of later epochs (ScaleRL: 0.9); 0: none. The
    run ends where all would be left out."""


@config_section
class VerifyConfig:
    """Verification: how programs are judged."""

    workers: Whole = resumable(1, ge=1)
    """Programs judged at once on this machine, at most the number of cores that this process may use (by its affinity
    and its container's quota); each further node of a cluster judges with all of its cores that are free."""
    isolation: Literal["auto", "A", "B", "C"] = "auto"
    """Weakest isolation tier accepted; "auto" is the best of A and B that this machine has."""
    cpu_s: Number = Field(4.0, gt=0)
    """CPU time per test, s. Wall time is limited to three times that plus 2 s."""

    def __post_init__(self) -> None:
        here = cores()
        way_out = f"more than the {count_of(here, 'core')} that this process may use make time limits unreliable"
        require(self.workers <= here, "verify.workers", self.workers, f"{way_out}: use {here} or less")


TRACKERS = {
    "tensorboard": "overlap.hooks.services:TensorBoard",
    "wandb": "overlap.hooks.services:Wandb",
    "trackio": "overlap.hooks.services:Trackio",
}
"""Trackers that ``run.trackers`` may name by one word, and their classes."""


@config_section
class RunConfig:
    """The run itself."""

    steps: Whole = resumable(40, ge=1)
    """Learner steps."""
    dir: str = resumable("runs/latest")
    """Run directory; "{time}" is replaced by the start time. Refused unless it is new, empty, or a failed start's."""
    seed: Whole = Field(0, ge=0)
    """Seed of data order, engine and learner."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of engine and learner."""
    stall_s: Number = resumable(1800.0, gt=0)
    """Seconds without a finished sample after which hanging samples are begun again, the next time given up by name."""
    eval_samples: Whole = resumable(4, ge=0)
    """Samples k per held-out problem in an evaluation, before and after the training, which tells pass@1 and pass@k;
    0 leaves it out."""
    eval_every: Whole = resumable(0, ge=0)
    """Steps between evaluations during the training, which also keep the best policy; 0: none."""
    save_every: Whole = resumable(0, ge=0)
    """Steps between checkpoints of the learner's state; 0: only the final policy is saved."""
    keep_last: Whole = resumable(2, ge=1)
    """Checkpoints that stay, the newest; one that the best policy came from stays beside them."""
    samples: Literal["some", "all", "none"] = resumable("some")
    """Samples that ``trajectories.jsonl`` keeps. "some": whole groups of each step and evaluation, for people to look
    at (``docs/look.md`` says which); "all": all of them, from which another run can be trained, too (``overlap train
    --from-rollouts``); "none"."""
    callbacks: tuple[Text, ...] = resumable(())
    """Classes of callbacks, as import paths "module:Class", each made without arguments; in addition to those given to
    ``overlap.train(cfg, callbacks=[...])``."""
    trackers: tuple[Text, ...] = resumable(("tensorboard",))
    """Further destinations of the rows of ``metrics.jsonl``: tensorboard (in the run's directory), wandb, trackio, or a
    class of yours, "module:Class" (``docs/look.md``)."""

    def __post_init__(self) -> None:
        samples = self.eval_samples
        require(samples > 0 or not self.eval_every, "run.eval_samples", samples, "run.eval_every needs 1 or more")
        names = self.trackers
        for name in names:
            require(
                name in TRACKERS or IMPORT_PATH.fullmatch(name) is not None,
                "run.trackers",
                name,
                f"is no tracker; {near_or_all(name, TRACKERS, 'use some of {}, or my_module:MyTracker')}",
            )
            require(names.count(name) == 1, "run.trackers", name, "is there twice: name it once")
        for path in self.callbacks:
            require(IMPORT_PATH.fullmatch(path) is not None, "run.callbacks", path, 'use "my_module:MyCallback"')


@config_section
class ClusterConfig:
    """A Ray cluster whose nodes work for the run; without an address nothing but this machine does."""

    address: str = resumable("")
    """Address at which its head listens, "host:port"; "": this machine alone, and Ray is not needed. A cluster that
    asks for no token is joined with RAY_AUTH_MODE=disabled in the environment only."""


@config_section
class Config:
    """A whole run. ``overlap.load_config`` builds one from YAML and overrides."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    episode: EpisodeConfig = Field(default_factory=EpisodeConfig)
    verify: VerifyConfig = Field(default_factory=VerifyConfig)
    learn: LearnConfig = Field(default_factory=LearnConfig)
    critic: CriticConfig = Field(default_factory=CriticConfig)
    run: RunConfig = Field(default_factory=RunConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        """Check the rules between sections; a rule of one section alone is checked in that section."""
        r, le, context, one = self.rollout, self.learn, self.context_tokens, self.model.response_tokens
        tokens, steps, gae, groups = self.episode.tokens, self.run.steps, le.advantage == "gae", r.groups_per_step
        way_out = f"one response may have {one}: use that or more, or 0"
        require(not tokens or tokens >= one, "episode.tokens", tokens, way_out)
        way_out = "a group needs 2 or more samples to have an advantage; 1 is enough with learn.advantage=gae or global"
        require(r.samples_per_group > 1 or not le.within_groups, "rollout.samples_per_group", 1, way_out)
        for name, value in () if gae else given_fields(self.critic, "critic"):
            require(False, name, value, "there is a critic with learn.advantage=gae alone")
        alone, way_out = self.critic.warmup_steps, f"the policy would learn in none of run.steps={steps}: use less"
        require(alone < steps, "critic.warmup_steps", alone, way_out)
        way_out = f"a mini-batch holds whole groups: use at most rollout.groups_per_step={groups}"
        require(le.updates_per_step <= groups, "learn.updates_per_step", le.updates_per_step, way_out)
        way_out = f"one sequence has up to {context} tokens (prompt and response, section model): use {context} or more"
        require(le.micro_batch_tokens >= context, "learn.micro_batch_tokens", le.micro_batch_tokens, way_out)
        way_out = f"a response has up to model.response_tokens={one}: use less than that"
        require(le.overlong_tokens < one, "learn.overlong_tokens", le.overlong_tokens, way_out)
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
    def dtype(self) -> Literal["bfloat16", "float32"]:
        """``model.dtype``; bfloat16 for an "auto" that no machine has settled yet (``placement.with_dtype``)."""
        return "bfloat16" if self.model.dtype == "auto" else self.model.dtype

    @property
    def sends_adapter(self) -> bool:
        """The engine gets adapters alone, and no weights."""
        return self.learn.lora_rank > 0

    @property
    def parity_bound(self) -> float:
        """Largest difference of engine and learner log-probs that is allowed after a sync, nats. In bfloat16 99 % of
        the confident tokens keep it (of few, all but one), and the mean over all tokens twice it; in float32 all do.
        """
        return 0.05 if self.dtype == "bfloat16" else 5e-4

    def replace(self, overrides: Overrides = (), /, **sections: Mapping[str, Any]) -> Config:
        """Another configuration with other values of some fields, by the ``overrides`` of :func:`overlap.load_config`
        or by section: ``cfg.replace({"learn.lr": 2e-5})`` is ``cfg.replace(learn={"lr": 2e-5})``. Raises ConfigError.
        """
        from overlap.config.load import replaced

        return replaced(replaced(self, overrides), sections)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dict, as written to ``config.yaml``."""
        return asdict(self)
