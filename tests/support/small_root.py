"""The root file system of a small image: a few programs of this machine, and the libraries that they load."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path


def make_small_root(root: Path, *programs: str) -> Path:
    """Everybody may read it, and go there."""
    for name in programs:
        path = shutil.which(name) or ""
        told = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        loaded = re.findall(r"(/\S+) \(0x", told)
        for source, target in ((path, f"/bin/{name}"), *zip(loaded, loaded, strict=True)):
            (root / target[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, root / target[1:])
    subprocess.run(["chmod", "-R", "a+rX", str(root.parent)], check=True)
    return root
