"""Checkpoints like another one, but for some tensors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file


def edited(source: Path, folder: Path, changes: Mapping[str, Any]) -> Path:
    """A copy in ``folder`` with these tensors in its file; None takes one out."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
