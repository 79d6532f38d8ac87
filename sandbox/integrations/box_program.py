"""Runs one command in a box of files, inside a jail: what `sandbox.integrations.box` has its pool run.

Its files beside it: `call.json` {argv, cwd, env, stdin (base64), timeout_s, most} and `state.tar`, the box. It leaves
`state.tar`, `out`, `err` and `ended.json` {code, timed_out, cut, error}. Standard library only; it is sent as text.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile

CALL, STATE, OUT, ERR, ENDED = "call.json", "state.tar", "out", "err", "ended.json"


def main() -> None:
    here = os.getcwd()
    with open(CALL) as file:
        call = json.load(file)
    box = os.path.join(here, "box")
    os.mkdir(box)
    with tarfile.open(STATE) as state:
        state.extractall(box, filter="tar")
    os.unlink(STATE)
    ended = _run(call, box)
    with tarfile.open(STATE, "w") as state:
        state.add(box, ".")
    with open(ENDED, "w") as file:
        json.dump(ended, file)


def _run(call: dict, box: str) -> dict:
    path = f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin"
    env = {"PATH": path, "HOME": box, "TMPDIR": box, "LANG": "C.UTF-8", **call["env"]}
    ended: dict[str, int | str | bool | None] = {"code": None, "timed_out": False, "cut": False, "error": ""}
    with open(OUT, "wb") as out, open(ERR, "wb") as err:
        try:
            child = subprocess.Popen(
                call["argv"],
                cwd=os.path.join(box, call["cwd"]),
                env=env,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            ended["error"] = type(error).__name__
            ended["code"] = 127 if isinstance(error, FileNotFoundError) else 126
            err.write(f"{call['argv'][0]}: {error.strerror}\n".encode())
            return ended
        try:
            child.communicate(base64.b64decode(call["stdin"]), timeout=call["timeout_s"])
        except subprocess.TimeoutExpired:
            ended["timed_out"] = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what it has started ends with it
        ended["code"] = child.wait()
    for name in (OUT, ERR):
        if os.path.getsize(name) > call["most"]:
            os.truncate(name, call["most"])
            ended["cut"] = True
    return ended


if __name__ == "__main__":
    main()
