"""``overlap export --push owner/name``: an exported policy and its model card on the Hugging Face hub.

The hub's own client decides where to and as whom: HF_ENDPOINT, HF_TOKEN, `hf auth login`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from overlap.config.fields import Config
from overlap.core.errors import ConfigError, OverlapError, one_line
from overlap.core.json_types import to_json_types
from overlap.inspect.run_data import RunData, load_run
from overlap.process.atomic import guarded
from overlap.record.run_files import RunFile

FIELD = "--push"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
CURVE = "curve.png"
_SECTIONS = ("model", "rollout", "episode", "verify", "learn", "critic")
"""Sections of the configuration that say what was learned, and how."""
_TEMPLATE = """\
---
{{ card_data }}
---

# {{ repo.split("/")[1] }}

`{{ public(config.model.policy) }}` after {{ step }} of {{ config.run.steps }} steps of reinforcement learning with
verifiable rewards: programs are judged by running them. Trained with overlap-rl\
{% if summary.seconds %} in {{ "%.2f" | format(summary.seconds / 3600) }} hours on \
{{ summary.hardware.gpus | join(", ") or summary.hardware.cores ~ " CPU cores" }} \
({% for name in ("torch", "vllm", "transformers") if name in summary.versions -%}
{{ name }} {{ summary.versions[name] }}{{ ", " if not loop.last }}{% endfor %}){% endif %}; \
the policy version is {{ version }}.
{% if points %}
## Evaluation

Held-out problems, with 95 % confidence intervals.

| step | measure | value | low | high | problems |
|---|---|---|---|---|---|
{% for point in points -%}
| {{ point.step }}{{ " (this policy)" if point.step == step }} | {{ point.rate.measure }} \
{% for value in (point.rate.estimate.value, point.rate.estimate.low, point.rate.estimate.high) -%}
| {{ "%.3f" | format(value) }} {% endfor %}| {{ point.rate.estimate.problems }} |
{% endfor %}{% endif %}{% if curve %}
## Training

![Rewards, lengths and times of the run]({{ curve }})
{% endif %}
## Data

| | |
|---|---|
| task | `{{ config.data.task }}` |
{% for split in ("train", "heldout") -%}
| {{ split }} | `{{ public(config.data[split]) or "the task's own" }}`, {{ summary.prompts[split] or "?" }} prompts |
{% endfor %}
## Settings

What differs from the defaults of overlap-rl:

```yaml
{{ settings }}```

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{{ repo }}")
model = AutoModelForCausalLM.from_pretrained("{{ repo }}")
```
"""


class HubRepo:
    """A model repository for a policy of ``run``, which this machine may write. Raises ConfigError where it may not,
    before anything long.
    """

    def __init__(self, name: str, run: Path, *, private: bool = False) -> None:
        if not isinstance(name, str) or not HUB_ID.fullmatch(name):
            raise ConfigError(FIELD, name, "use the id of a model repository, as in owner/name")
        from huggingface_hub import HfApi

        self.name, self._run, self._api = name, load_run(run), HfApi()
        _ = self._run.config  # raises where it cannot be read: the model card needs it
        try:
            self._api.whoami()
            self._api.create_repo(name, private=private or None, exist_ok=True)
        except Exception as error:  # whatever the hub's client raises
            way_out = "log in (`hf auth login`, or HF_TOKEN) as one who may write there, or export without --push and "
            way_out += f"later `hf upload {name} FOLDER`"
            raise ConfigError(FIELD, name, f"{self._api.endpoint} refuses it ({_reason(error)}): {way_out}") from error

    def push(self, folder: Path, step: int, version: int) -> str:
        """Write the model card into ``folder`` and upload all of it; returns the address of the repository. Raises
        OverlapError: the folder stays.
        """
        with guarded(folder):
            write_model_card(folder, self._run, step, version, self.name)
        message = f"Policy after step {step}, by overlap-rl"
        try:
            found = self._api.upload_folder(repo_id=self.name, folder_path=folder, commit_message=message)
        except Exception as error:  # whatever the hub's client raises
            way_out = f"it is in {folder}: `hf upload {self.name} {folder}` tries again"
            raise OverlapError(f"the policy was not uploaded to {self.name} ({_reason(error)}); {way_out}") from error
        return str(found.repo_url)


def write_model_card(folder: Path, run: RunData, step: int, version: int, repo: str) -> None:
    """Write ``README.md`` into ``folder``, which has the policy of a run after ``step``, and the run's picture beside
    it. Raises ConfigError, OSError.
    """
    from huggingface_hub import ModelCard, ModelCardData

    curve = RunFile.PICTURE.of(run.path)
    if curve.is_file():
        shutil.copyfile(curve, folder / CURVE)
    config = run.config
    policy, source = str(config["model"]["policy"]), str(config["data"].get("train") or "")
    head = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["overlap-rl", "reinforcement-learning", "code"],
        base_model=policy if _is_hub_id(policy) else None,
        datasets=[source] if _is_hub_id(source) else None,
    )
    card = ModelCard.from_template(
        head,
        template_str=_TEMPLATE,
        repo=repo,
        step=step,
        version=version,
        config=config,
        summary={"hardware": {}, "prompts": {}, "versions": {}} | (run.summary or {}),
        points=run.evaluations,
        curve=CURVE if curve.is_file() else "",
        settings=yaml.safe_dump(_changed(config), sort_keys=False, allow_unicode=True),
        public=_public,
    )
    card.save(folder / "README.md")


def _changed(config: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The fields of the policy and of learning with other values than their defaults."""
    usual: dict[str, dict[str, Any]] = to_json_types(Config().to_dict())
    found = {
        section: {name: _public(value) for name, value in config[section].items() if value != usual[section].get(name)}
        for section in _SECTIONS
        if section in config
    }
    run = {name: config["run"][name] for name in ("steps", "seed")}
    return {section: values for section, values in found.items() if values} | {"run": run}


def _is_hub_id(text: str) -> bool:
    return HUB_ID.fullmatch(text) is not None and not Path(text).exists()


def _public(value: Any) -> Any:
    """A path by its name alone: its folder on this machine is private."""
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~", ".")) else value


def _reason(error: Exception) -> str:
    return one_line((str(error).strip() or type(error).__name__).splitlines()[0], 200)
