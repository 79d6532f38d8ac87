"""An agent program without any library: ``python tiny_agent.py WHAT`` speaks to the gateway and does what it is told.

Turns: it asks, appends the answer, asks again, ``TURNS`` times; then it does WHAT. A message behind an answer has
``LETTERS`` letters more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def say(messages: list[dict[str, object]]) -> dict[str, object]:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": messages}).encode(),
        {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer)["choices"][0]["message"])


def leave_processes() -> None:
    """Some of them hide: in a session of their own, without a parent, without an environment."""
    for command in (["sleep", "1000"], ["setsid", "sleep", "1000"], ["sh", "-c", "setsid env -i sleep 1000 &"]):
        subprocess.Popen(command)


def main() -> None:
    what, turns = sys.argv[1], int(os.environ.get("TURNS", "2"))
    messages: list[dict[str, object]] = [{"role": "user", "content": Path("prompt.txt").read_text()}]
    for turn in range(turns):
        try:
            messages.append(say(messages))
        except urllib.error.HTTPError as error:
            print(f"status {error.code}", file=sys.stderr)
            if what == "stays":
                time.sleep(1000)
            if what in ("forgets", "forgets and crashes"):
                messages = messages[:1]
                continue
            sys.exit(0 if what == "gives up" else 4)
        messages.append({"role": "user", "content": f"turn {turn}" + "x" * int(os.environ.get("LETTERS", "0"))})
    if what == "writes":
        Path("answer.txt").write_text(f"written: {messages[-2]['content']}")
    elif what in ("crashes", "forgets and crashes"):
        sys.exit("it broke")
    elif what == "leaves":
        leave_processes()
    elif what == "hangs":
        leave_processes()
        time.sleep(1000)
    elif what == "kills its keeper":
        for command in (["sleep", "1000"], ["setsid", "sleep", "1000"]):
            subprocess.Popen(command)
        os.kill(parent_of(os.getppid()), 9)  # a shell is between
        time.sleep(1000)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


main()
