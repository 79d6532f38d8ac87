"""The inputs of a run: policy, tokenizer, task and prompts, loaded and checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.core import Prompt, Task
from overlap.core.errors import ConfigError, blaming, refusing
from overlap.pipeline.advantage import estimator
from overlap.pipeline.dataset_filter import PromptSplit, check_splits
from overlap.placement.devices import devices_here, with_dtype
from overlap.placement.seats import Placement
from overlap.process.interrupts import import_whole
from overlap.process.reaper import Reaper
from overlap.record.kept_samples import KeptSamples
from overlap.record.logs import Console, OpenConsole, quiet
from overlap.record.rundir import RunDir
from overlap.run.control import RunControl
from overlap.run.seating import check_cluster
from overlap.run.task_prompts import check_probes, task_prompts


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Everything that bad input could spoil, checked before anything is started."""

    cfg: Config
    task: Task
    policy: Path
    tokenizer: Any
    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    splits: Mapping[str, PromptSplit] = field(default_factory=dict)
    """By split: what the task's data gave, with the rows that are left out."""
    critic: Path | None = None
    """The checkpoint that a critic starts from, where there is one."""
    reference: Path | None = None
    """The checkpoint of ``learn.reference``, where one is named."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """Inputs of a run. ``data``: digest of the prompts, for checkpoints. ``rollouts``: samples to train from in the
    place of an engine and a verifier.
    """

    inputs: RunInputs
    placement: Placement
    run: RunDir
    scratch: Path
    console: Console
    reaper: Reaper
    control: RunControl
    data: str = ""
    rollouts: KeptSamples | None = None

    def text_of(self, prompt: Prompt) -> str:
        return str(self.inputs.tokenizer.decode(list(prompt.token_ids)))


def prepare(cfg: Config, task: Task | None, scratch: Path, output: OpenConsole = quiet) -> RunInputs:
    """Load policy, tokenizer and prompts. Raises ConfigError, also where too many rows of the data cannot be used.
    ``output`` takes what libraries print meanwhile.
    """
    import_whole("numpy", "torch")
    from overlap.generate.options import check_options
    from overlap.learner.learner import check_functions
    from overlap.policy.resolve import resolve_policy
    from overlap.run.agent_command import check_agent
    from overlap.task import check_rollout, check_task, load_task

    with output(scratch / "prepare.log"):
        cfg = with_dtype(cfg)
        kind: Any = task if isinstance(task, type) else type(task)
        task = load_task(cfg.data.task, cfg) if task is None else check_task(task, kind.__name__, cfg)
        check_options(cfg, devices_here(cfg.run.device).kind)  # refuses a GPU that is not there, too
        estimator(cfg.learn.advantage)
        check_functions(cfg.learn)
        check_cluster(cfg)
        policy = resolve_policy(cfg.model.policy)
        tokenizer = load_tokenizer(policy)
        if given := cfg.model.chat_template_kwargs:  # for all that render: the task, the gateway
            tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, **given)
        named = {"critic.policy": cfg.critic.policy or cfg.model.policy} if cfg.learn.advantage == "gae" else {}
        named |= {"learn.reference": cfg.learn.reference} if cfg.learn.reference else {}
        beside = {field: _same_tokens(cfg, policy, tokenizer, field, name) for field, name in named.items()}
        check_rollout(cfg, task)
        splits = task_prompts(task, tokenizer, cfg.model.prompt_tokens)
        for prompt in splits["train"].prompts[:1]:
            check_probes(task, prompt)
            check_agent(cfg, task, prompt, tokenizer)
    check_splits(splits, cfg.data.train)
    train, heldout = splits["train"].prompts, splits["heldout"].prompts
    if cfg.run.eval_every and not heldout:
        way_out = "there are no held-out prompts: name problems in data.heldout, or use run.eval_every=0"
        raise ConfigError("run.eval_every", cfg.run.eval_every, way_out)
    models = beside.get("critic.policy"), beside.get("learn.reference")
    return RunInputs(cfg, task, policy, tokenizer, train, heldout, splits, *models)


def load_tokenizer(policy: Path) -> Any:
    """The policy's tokenizer. Raises ConfigError."""
    from transformers import AutoTokenizer

    fault, way_out = "has no tokenizer that transformers loads", "give another policy"
    with refusing("model.policy", str(policy), fault, way_out, (OSError, ValueError)):
        return AutoTokenizer.from_pretrained(policy)


def check_place(cfg: Config, *, resume: bool) -> None:
    """Refuse a run directory that this run may not have, before anything is loaded. Raises ConfigError."""
    from overlap.record.ownership import check_run_dir_free, resolve
    from overlap.record.resume import stored_config

    if resume:
        stored_config(cfg.run.dir)
    else:
        check_run_dir_free(resolve(cfg.run.dir), cfg.run.dir)


def _same_tokens(cfg: Config, policy: Path, tokenizer: Any, field: str, named: str) -> Path:
    """The checkpoint that ``field`` names; it has the policy's tokenizer. Behind the tokens, the two may be padded to
    other sizes.
    """
    from overlap.policy.resolve import resolve_policy

    with blaming(field):
        found = resolve_policy(named)
        same = found == policy or load_tokenizer(found).get_vocab() == tokenizer.get_vocab()
    if not same:
        way_out = f"its tokenizer is not that of model.policy={cfg.model.policy}: use a checkpoint of the same family"
        raise ConfigError(field, named, way_out)
    return found
