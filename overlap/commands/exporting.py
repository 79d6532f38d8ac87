"""``overlap.export`` and its command: a Hugging Face checkpoint of a state that a run has saved. Needs no engine and no
GPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from overlap.commands.publishing import HubRepo
from overlap.config.load import check_stored_fields, config_from_dict
from overlap.config.rules import check_count_given, path_given
from overlap.core.errors import ConfigError
from overlap.learner.saved_state import export_policy
from overlap.policy.resolve import resolve_policy
from overlap.process.atomic import made_whole
from overlap.process.interrupts import import_whole
from overlap.record.checkpoint import LEARNER, find_checkpoint, latest, load_state
from overlap.record.logs import guest
from overlap.record.ownership import check_out, find_run_file
from overlap.record.run_files import RunFile, exported_policy


class ExportedPolicy(NamedTuple):
    """A checkpoint in Hugging Face format."""

    path: Path
    step: int
    """The step of the run after which this was its policy."""
    version: int
    url: str = ""
    """URL of the repository that the policy was pushed to."""


def export(
    run: str | Path,
    *,
    step: int | None = None,
    out: str | Path | None = None,
    push: str = "",
    private: bool = False,
) -> ExportedPolicy:
    """Write the policy of the run directory ``run`` after ``step`` (default: of the newest checkpoint) into ``out``, a
    folder that is not there yet (default: ``policy-step-N`` in the run directory).

    The folder appears whole or not at all. ``push``: a repository "owner/name" of the Hugging Face hub, made where it
    is not there (``private`` if so asked), to which the folder goes with a model card. Raises ConfigError, RunDirError;
    OverlapError where the upload failed.
    """
    if private and not push:
        raise ConfigError("--private", private, "is for --push owner/name: give both, or leave it out")
    way_out = "name the directory of a run with run.save_every=N"
    run = str(path_given("run", run, "runs/first"))
    check_count_given("step", step, "the newest checkpoint")
    target = path_given("out", out, "policies/first") if out is not None else None
    root = find_run_file(run, RunFile.CHECKPOINTS, field="RUN", way_out=way_out)
    folder = latest(root) if step is None else find_checkpoint(root, step)
    if folder is None:
        raise ConfigError("RUN", run, "holds no complete checkpoint; train with run.save_every=N")
    state = load_state(folder)
    check_stored_fields(state.config, str(folder))
    here = {**state.config, "verify": {**state.config["verify"], "workers": 1}}  # this machine's cores do not matter
    cfg = config_from_dict(here)
    target = target or exported_policy(root.parent, state.step)
    check_out(target, folder=True)
    repo = HubRepo(push, root.parent, private=private) if push else None
    import_whole("numpy", "torch")
    policy = resolve_policy(cfg.model.policy)
    with made_whole(target) as partial, guest(Path(os.devnull), None):  # what libraries log
        version = export_policy(folder / LEARNER, cfg, policy, partial)
    url = repo.push(target, state.step, version) if repo is not None else ""
    return ExportedPolicy(target, state.step, version, url)
