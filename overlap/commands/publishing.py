"""``overlap export --push owner/name``: an exported policy and its model card on the Hugging Face hub.

The hub's own client decides where to and as whom: HF_ENDPOINT, HF_TOKEN, `hf auth login`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlap.analysis.run_data import load_run
from overlap.commands.model_card import HUB_ID, write_model_card
from overlap.errors import ConfigError, OverlapError, one_line

FIELD = "--push"


class HubRepo:
    """A model repository for a policy of ``run``, which this machine may write. Raises ConfigError where it may not,
    before anything long.
    """

    def __init__(self, name: str, run: Path, *, private: bool = False) -> None:
        if not isinstance(name, str) or not HUB_ID.fullmatch(name):
            raise ConfigError(FIELD, name, "use the id of a model repository, as in owner/name")
        self.name, self._run = name, load_run(run)
        _ = self._run.config  # raises where it cannot be read: the model card tells of it
        self._api = _reached(name)
        _trying(name, lambda: self._api.create_repo(name, private=private or None, exist_ok=True))

    def push(self, folder: Path, step: int, version: int) -> str:
        """Write the model card into ``folder`` and upload all of it; returns the address of the repository. Raises
        OverlapError: the folder stays.
        """
        write_model_card(folder, self._run, step, version, self.name)
        try:
            found = self._api.upload_folder(
                repo_id=self.name, folder_path=folder, commit_message=f"Policy after step {step}, by overlap-rl"
            )
        except Exception as error:  # whatever the hub's client raises
            way_out = f"it is in {folder}: `hf upload {self.name} {folder}` tries again"
            raise OverlapError(f"the policy was not uploaded to {self.name} ({_reason(error)}); {way_out}") from error
        return str(found.repo_url)


def _reached(name: str) -> Any:
    """The hub's client, logged in. Raises ConfigError."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled
    except ImportError as error:
        raise ConfigError(FIELD, name, "needs a package that is not installed: pip install huggingface_hub") from error
    api = HfApi()
    try:
        api.whoami()
    except LocalTokenNotFoundError as error:
        raise ConfigError(FIELD, name, "there is no token for the hub: `hf auth login`, or set HF_TOKEN") from error
    except OfflineModeIsEnabled as error:
        raise ConfigError(FIELD, name, "HF_HUB_OFFLINE is set: unset it to upload") from error
    except Exception as error:  # whatever the hub's client raises
        if _status(error) in (401, 403):
            way_out = f"the hub does not take the token ({_reason(error)}): `hf auth login`, or set HF_TOKEN"
            raise ConfigError(FIELD, name, way_out) from error
        way_out = f"the hub at {api.endpoint} cannot be reached ({_reason(error)}): export without --push, and later "
        raise ConfigError(FIELD, name, f"{way_out}`hf upload {name} FOLDER`") from error
    return api


def _trying(name: str, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as error:  # whatever the hub's client raises
        way_out = (
            f"the hub does not let this token write there ({_reason(error)}): use a name of yours, or another token"
        )
        raise ConfigError(FIELD, name, way_out) from error


def _status(error: Exception) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _reason(error: Exception) -> str:
    return one_line(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, 200)
