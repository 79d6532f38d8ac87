"""Python programs that keep their state between calls, programs of several files that run once, and commands in one
working directory."""
