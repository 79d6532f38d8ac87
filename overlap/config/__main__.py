"""Prints docs/config.md."""

from overlap.config.docs import page

print(page(), end="")
