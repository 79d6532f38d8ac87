"""The model card of an exported policy: data, settings, curve and evaluation of the run that trained it."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from overlap.analysis.run_data import RunData
from overlap.atomic import write_atomic
from overlap.config.load import config_from_dict
from overlap.errors import ConfigError
from overlap.json_types import to_json_types
from overlap.record.picture import write_picture
from overlap.record.run_files import RunFile

CARD, CURVE = "README.md", "curve.png"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SECTIONS = ("model", "rollout", "episode", "verify", "learn", "critic")
"""Of the configuration, those that say what was learned, and how."""


def write_model_card(folder: Path, data: RunData, step: int, version: int, name: str) -> None:
    """Write ``README.md`` and ``curve.png`` into ``folder``, the policy of a run after ``step``; ``name`` is that of
    its repository. Raises ConfigError, RunDirError.
    """
    curve = _write_curve(folder / CURVE, data)
    lines = [*_front_matter(data), f"# {name.partition('/')[2]}", "", *_what(data, step, version)]
    lines += [*_evaluation(data, step), *_curve(curve), *_data(data), *_settings(data), *_use(name)]
    write_atomic(folder / CARD, "\n".join(lines) + "\n")


def _front_matter(data: RunData) -> Iterator[str]:
    config = data.config
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    head["tags"] = ["overlap-rl", "reinforcement-learning", "code"]
    policy, train = str(config["model"]["policy"]), str(config["data"].get("train", ""))
    if _is_hub_id(policy):
        head["base_model"] = policy
    if _is_hub_id(train):
        head["datasets"] = [train]
    yield from ("---", yaml.safe_dump(head, sort_keys=False).rstrip(), "---", "")


def _what(data: RunData, step: int, version: int) -> Iterator[str]:
    policy = _public(str(data.config["model"]["policy"]))
    yield f"`{policy}` after {step} of {data.config['run']['steps']} steps of reinforcement learning with verifiable"
    yield "rewards: programs are judged by running them. Trained with overlap-rl."
    yield ""
    if summary := data.summary:
        hardware, versions = summary.get("hardware") or {}, summary.get("versions") or {}
        gpus = ", ".join(hardware.get("gpus") or ()) or f"{hardware.get('cores', '?')} CPU cores"
        hours = summary["seconds"] / 3600
        known = ", ".join(f"{name} {versions[name]}" for name in ("torch", "vllm", "transformers") if name in versions)
        yield f"The run took {hours:.2f} hours on {gpus} ({known}); the policy version is {version}."
        yield ""


def _evaluation(data: RunData, step: int) -> Iterator[str]:
    points = data.evaluations
    if not points:
        return
    yield from ("## Evaluation", "", "Held-out problems, with 95 % confidence intervals.", "")
    yield from ("| step | measure | value | low | high | problems |", "|---|---|---|---|---|---|")
    for point in points:
        estimate = point.rate.estimate
        shown = " (this policy)" if point.step == step else ""
        figures = " | ".join(_number(value) for value in (estimate.value, estimate.low, estimate.high))
        yield f"| {point.step}{shown} | {point.rate.measure} | {figures} | {estimate.problems} |"
    yield ""


def _curve(there: bool) -> Iterator[str]:
    if there:
        yield from ("## Training", "", f"![Rewards, lengths and times of the run]({CURVE})", "")


def _write_curve(path: Path, data: RunData) -> bool:
    """The picture of the run's end, or one of its steps so far."""
    if (drawn := RunFile.PICTURE.of(data.path)).is_file():
        shutil.copyfile(drawn, path)
        return True
    if not data.steps:
        return False
    found = {point.step: asdict(point.rate.estimate) for point in data.evaluations}
    write_picture(data.steps, path, evaluations=found)
    return True


def _data(data: RunData) -> Iterator[str]:
    config, summary = data.config["data"], data.summary or {}
    prompts = summary.get("prompts") or {}
    yield from ("## Data", "", "| | |", "|---|---|", f"| task | `{config['task']}` |")
    for split in ("train", "heldout"):
        source = _public(str(config.get(split) or "")) or "the task's own"
        count = f", {prompts[split]} prompts" if split in prompts else ""
        yield f"| {split} | `{source}`{count} |"
    yield ""


def _settings(data: RunData) -> Iterator[str]:
    yield from ("## Settings", "", "What differs from the defaults of overlap-rl:", "", "```yaml")
    yield yaml.safe_dump(_changed(data.config), sort_keys=False, allow_unicode=True).rstrip()
    yield from ("```", "")


def _changed(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of the policy and of learning with other values than their defaults; of a path, its name alone."""
    try:
        cfg = config_from_dict({**config, "verify": {**config.get("verify", {}), "workers": 1}})
    except (ConfigError, TypeError):  # that of another version
        return {name: dict(config[name]) for name in _SECTIONS if name in config}
    found: dict[str, Any] = {}
    for section in _SECTIONS:
        if given := {name.partition(".")[2]: value for name, value in getattr(cfg, section).given()}:
            found[section] = {
                name: _public(value) if isinstance(value, str) else value for name, value in given.items()
            }
    found["run"] = {"steps": cfg.run.steps, "seed": cfg.run.seed}
    plain: dict[str, Any] = to_json_types(found)
    return plain


def _use(name: str) -> Iterator[str]:
    yield from ("## Use", "", "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", "")
    yield f'tokenizer = AutoTokenizer.from_pretrained("{name}")'
    yield f'model = AutoModelForCausalLM.from_pretrained("{name}")'
    yield "```"


def _is_hub_id(text: str) -> bool:
    return HUB_ID.fullmatch(text) is not None and not Path(text).exists()


def _public(text: str) -> str:
    """A path by its name alone: where it lay on a machine is nobody's business."""
    return Path(text).name if text.startswith(("/", "~", ".")) else text


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
