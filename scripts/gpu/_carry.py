"""Packs what a GPU machine without a network lacks for the stages that need no vLLM: wheels, to be installed there.

There have to be torch 2.11 to 2.13 built for CUDA, transformers, numpy, and what most machines have that have these.
DeepSpeed is published as source and built here; the others are taken as wheels for the Python that is named. Versions
are those of requirements/cuda.txt.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ("deepspeed",)
WHEELS = ("annotated-types", "hjson", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
MOST_MIB, PIECE_MIB = 64, 60
"""Of the wheels and the repository's files together, and of one wheel."""
SITE = "/tmp/overlap-gpu-site"


def main() -> int:
    """Exit code 0 when the folder holds all of it, 1 where it is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="made, and emptied of wheels")
    parser.add_argument("--for-python", default="3.12", metavar="X.Y", help="of the machine (3.12)")
    options = parser.parse_args()
    pack(options.folder, options.for_python)
    sizes = {wheel.name: wheel.stat().st_size / 2**20 for wheel in sorted(options.folder.glob("*.whl"))}
    whole = sum(sizes.values()) + repository_mib()
    for name, size in sizes.items():
        print(f"{size:6.1f} MiB  {name}")
    print(f"{whole:6.1f} MiB  with the repository, of {MOST_MIB}")
    if whole > MOST_MIB or max(sizes.values()) > PIECE_MIB:
        print(f"gpu check: more than {MOST_MIB} MiB, or a wheel of more than {PIECE_MIB}", file=sys.stderr)
        return 1
    print(f"\non the machine, in a copy of this folder's repository:\n{command(options.folder)}")
    return 0


def pack(folder: Path, python: str) -> None:
    """Build and download the wheels into ``folder``. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    known, pip = pins(), [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    more = ["-q", "--no-input", "--no-deps"]
    subprocess.run([*pip, "wheel", *more, "-w", folder, *(known[name] for name in BUILT)], check=True)
    there = [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    there += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    subprocess.run([*pip, "download", *more, *there, "-d", folder, *(known[name] for name in WHEELS)], check=True)


def pins(file: Path = ROOT / "requirements" / "cuda.txt") -> dict[str, str]:
    """The line of each package, by its name with dashes."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): f"{name}=={version}" for name, version in found}


def repository_mib() -> float:
    """What of the working tree travels: files that git tracks, or would."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\0")
    return sum(path.stat().st_size for name in names if name and (path := ROOT / name).is_file()) / 2**20


def command(folder: Path) -> str:
    """What to run there."""
    install = f"python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target {SITE}"
    stages = "attention learner resume ipc step"
    return (
        f"{install} {folder}/*.whl && export PYTHONPATH={SITE} &&\n"
        f"  bash scripts/gpu/check.sh --python python3 {stages} --out gpu_check.json"
    )


if __name__ == "__main__":
    raise SystemExit(main())
