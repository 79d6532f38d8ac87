"""The run directory that an earlier commit has left; see tests/fixtures/README.md."""

from __future__ import annotations

import tarfile
from pathlib import Path

from places import SUPPORT

ARCHIVE = SUPPORT.parent / "fixtures" / "run_e515161.tar.gz"


def unpack(folder: Path) -> Path:
    """Unpack policy and run into ``folder``, where commands find both by the relative paths of the configuration."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
        archive.extractall(folder)
    return folder / "run"
