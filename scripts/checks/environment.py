"""Says whether an environment holds every pinned package, by the names of its metadata folders.

Usage: python -I scripts/checks/environment.py DISTRIBUTION LOCK_FILE...
Imports none of them. Exit code 1, and the first few names, where some are missing or in another version.
"""

import re
import sys
import sysconfig
from pathlib import Path


def normal(name: str) -> str:
    """The one spelling that packaging tools compare by."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(site_packages: Path) -> dict[str, str]:
    """Normalised distribution name -> version."""
    stems = (folder.name.removesuffix(".dist-info") for folder in site_packages.glob("*.dist-info"))
    return {normal(name): version for name, _, version in (stem.partition("-") for stem in stems)}


def pinned(lock_file: Path) -> dict[str, str]:
    """Normalised distribution name -> version, from lines of the form ``name==version``."""
    lines = (line.strip() for line in lock_file.read_text().splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


def main(distribution: str, *lock_files: str) -> int:
    found = installed(Path(sysconfig.get_path("purelib")))
    wanted = {name: version for lock in lock_files for name, version in pinned(Path(lock)).items()}
    wrong = [f"{name}=={version}" for name, version in wanted.items() if found.get(name) != version]
    if normal(distribution) not in found:
        wrong.append(distribution)
    if wrong:
        print(f"{len(wrong)} missing or in another version: {', '.join(wrong[:5])}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
