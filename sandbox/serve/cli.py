"""The command `sandbox serve`. What needs the extra is imported when it runs.

Exit code 0: SIGTERM, after what ran had ended. 2: bad arguments, a port in use, or the sandbox cannot judge here. 130:
Ctrl-C, after what ran had ended. 128 and the number of the signal, as for every command: what ran was cut.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import ipaddress
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sandbox.core.nouns import MIB
from sandbox.errors import SandboxError
from sandbox.serve.bounds import BODY_BYTES, QUEUE

PORT: Final = 8080
"""Port at which clients of SandboxFusion look by default."""
_NEEDED: Final = ("fastapi", "prometheus_client", "uvicorn")
_WAYS_OUT: Final = {
    errno.EADDRINUSE: "another program has it: give another --port, or 0 for a free one",
    errno.EACCES: "ports below 1024 are root's: give another --port, or 0 for a free one",
}
"""Remedies for an address that cannot be listened on, by the error."""


def add_serve_parser(actions: Any) -> argparse.ArgumentParser:
    text = "judge programs for other processes and machines, over HTTP"
    parser: argparse.ArgumentParser = actions.add_parser("serve", help=text, description=text[0].upper() + text[1:])
    add, mib = parser.add_argument, BODY_BYTES // MIB
    add("--host", default="127.0.0.1", help="address to listen on; default: %(default)s, this machine alone")
    add("--port", type=int, default=PORT, help="0 takes a free one (default %(default)s)")
    add("--workers", type=int, help="judges at the same time (default: one per core)")
    add("--queue", type=int, default=QUEUE, help="requests in hand; more get 503 (default %(default)s)")
    add("--body-limit", type=int, default=mib, metavar="MIB", help="MiB of one request (default %(default)s)")
    add("--drain-s", type=float, default=60.0, metavar="S", help="for what runs at its end (default %(default)s)")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token", help="what clients must send; other users can see it in the process list")
    token.add_argument("--token-file", type=Path, help="a file with the token")
    parser.set_defaults(action=serve)
    return parser


def serve(options: argparse.Namespace) -> int:
    """Raises SandboxError, OSError."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise SandboxError(f"serve needs {', '.join(missing)}: pip install 'overlap-rl[serve]'")
    for name, least in (("workers", 1), ("queue", 1), ("body_limit", 1), ("drain_s", 0), ("port", 0)):
        value = getattr(options, name)
        if value is not None and not least <= value < 1 << 31:
            raise SandboxError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    if options.port > 65535:
        raise SandboxError(f"--port {options.port}: must be at most 65535")
    if options.token_file:
        options.token = options.token_file.read_text("utf-8").strip()
        if not options.token:
            raise SandboxError(f"--token-file {options.token_file}: is empty; write the token into it")
    if options.token == "":
        raise SandboxError("--token: is empty; give the token (is its variable set?), or leave --token out")
    options.token = options.token or ""
    if not options.token.isascii() or not options.token.isprintable():
        raise SandboxError("--token: must be printable ASCII")
    options.body_bytes = options.body_limit * MIB

    from sandbox.serve.listening import bind
    from sandbox.serve.serving import Serving

    try:
        listener = bind(options.host, options.port)
        listener.listen()  # now: two servers may both be bound to a port until one listens
    except OSError as error:
        way_out = _WAYS_OUT.get(
            error.errno or 0, "give an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"
        )
        raise SandboxError(
            f"--host {options.host} --port {options.port}: {error.strerror or error}; {way_out}"
        ) from error
    warn(options.host, listener, bool(options.token))
    return asyncio.run(Serving(listener, options).run())


def warn(host: str, listener: socket.socket, token: bool) -> None:
    """Say who can reach a server that does not listen on this machine alone."""
    if ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        return
    text = (
        f"WARNING: everybody who can reach {host} may run programs here: there is no token. Give --token-file, or "
        "let a firewall decide who may"
    )
    if token:
        text = f"warning: {host} can be reached from other machines; the token crosses the network as plain text"
    print(f"sandbox: {text}", file=sys.stderr, flush=True)
