"""``overlap view``: a run's samples in a browser."""

from __future__ import annotations

import argparse

from overlap.view import serve_samples


def view_command(args: argparse.Namespace) -> int:
    """Serve the page of ``overlap view`` until Ctrl-C."""
    serve_samples(args.run, port=args.port, open_browser=args.open)
    return 0
