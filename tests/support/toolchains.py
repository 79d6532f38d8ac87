"""What of the table of languages this machine can run."""

from __future__ import annotations

import pytest

from sandbox.languages import toolchain
from sandbox.languages.table import find_language


def is_installed(language: str) -> bool:
    return all(toolchain.find_tool(name) for name in find_language(language).tools)


def need(language: str) -> None:
    if not is_installed(language):
        pytest.skip(f"needs {find_language(language).package}")
