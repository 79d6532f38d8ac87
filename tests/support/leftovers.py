"""What of a test still runs, by where it works: a process keeps that whatever it does to parents and environment."""

from __future__ import annotations

from pathlib import Path

import psutil


def said(process: psutil.Process) -> str:
    """Its command line; "" for one that is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def working_in(folder: Path) -> list[str]:
    """Command lines of the processes whose working directory is there, or was."""
    return [said(process) for process in psutil.process_iter() if _place(process).startswith(str(folder))]


def _place(process: psutil.Process) -> str:
    try:
        return str(process.cwd())
    except psutil.Error:
        return ""
