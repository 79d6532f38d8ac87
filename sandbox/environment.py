"""The environment of this process, as it can be read while another thread changes it."""

import os


def current() -> dict[str, str]:
    """A copy. `dict(os.environ)` raises KeyError where a variable goes between its name and its value."""
    # Each of the two steps is one operation of the interpreter.
    return {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}
