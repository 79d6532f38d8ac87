"""The command ``overlap``: signals, output, errors and exit codes; the commands themselves are in overlap/commands.

Exit codes: 0 done, 2 bad input (one line, nothing lost), 1 the run failed (one line), 130 Ctrl-C, 143 SIGTERM,
129 the terminal was closed. A signal is heard from the first moment on: what takes long to import is imported later.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from types import FrameType

EXTRAS = (
    "a run needs the extras train and cpu, or train and cuda on GPUs: pip install 'overlap-rl[train,cpu]', or "
    "bash scripts/setup.sh in a checkout"
)
"""Way out where ``overlap`` was installed without what it trains with; the sandbox needs none of it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = _parse(argv)
    return ending_in_order(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    """A command returns its exit code, or yields the lines of its output, and may return its exit code then. Where the
    output of another kind goes to stdout, the lines go to stderr.
    """
    from overlap.process.atomic import is_stdout

    beside = any(is_stdout(getattr(args, name, None)) for name in ("out", "trace"))
    done = args.run_command(args)
    if isinstance(done, int):
        return done
    with closing(done) as lines:
        while True:
            try:
                line = next(lines)
            except StopIteration as end:
                return end.value or 0
            print_output(line, beside=beside)


def ending_in_order(work: Callable[[], int]) -> int:
    """Do the work of a command; returns its exit code. What ended it early is printed in one line."""
    from overlap.core.errors import ConfigError, OverlapError, one_line
    from overlap.process.interrupts import exit_code, handle_interrupts
    from sandbox.core.checks import printable

    with handle_interrupts() as interrupts:
        try:
            code = work()
            interrupts.check()
            return code
        except OverlapError as error:
            kind = "bad input: " if isinstance(error, ConfigError) else "failed: "
            _print_error(printable(kind + one_line(error)))  # a name or a value may hold a terminal's commands
            return error.exit_code
        except KeyboardInterrupt as interrupt:
            exec("")  # has the interpreter forget one that left an exec, as a dataclass's: `-m` would end by SIGINT
            _print_error("interrupted")
            return exit_code(interrupt)
        except BrokenPipeError:  # the reader of our output has closed it
            return 128 + signal.SIGPIPE
        except ModuleNotFoundError as error:
            package = (error.name or "overlap").partition(".")[0]
            if package in ("overlap", "sandbox", "recipes"):
                raise
            _print_error(f"bad input: {package} is not installed: {EXTRAS}")
            return 2
        finally:
            _flush()


def command(main: Callable[[], int] = main) -> int:
    """As ``main``, for a process that exits afterwards: once the output is complete, signals are ignored. After one,
    the exit waits for nothing that a library left behind, such as the upload of a tracker.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)
    from overlap.process.interrupts import SIGNALS

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a name may hold what the terminal cannot print
    code = main()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if code - 128 in SIGNALS:
        os._exit(code)
    return code


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """Exit at once: no command has begun that would need cleaning up, and an import may swallow an exception."""
    with suppress(OSError):
        os.write(2, b"overlap: interrupted\n")
    os._exit(128 + number)


def print_output(*lines: str, beside: bool = False) -> None:
    """The output of a command, on stdout, or ``beside`` it on stderr. Raises RunDirError if it cannot be written."""
    try:
        print(*lines, sep="\n", flush=True, file=sys.stderr if beside else None)
    except OSError as error:
        from overlap.core.errors import RunDirError

        if isinstance(error, BrokenPipeError):
            raise
        raise RunDirError(f"cannot write to stdout: {error.strerror or error}; redirect it to another place") from error


def _print_error(line: str) -> None:
    with suppress(OSError):  # the terminal has gone
        print(f"overlap: {line}", file=sys.stderr)


def _flush() -> None:
    """Flush stdout; where its reader has gone, the interpreter would print an error and change the exit code."""
    try:
        if sys.stdout is not None:  # None where the program was started with its output closed
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; overrides may be anywhere, also between and after options."""
    from overlap.commands.flags import OneLineParser, unknown_words
    from overlap.commands.parsers import add_commands

    parser = OneLineParser(
        prog="overlap",
        description="Reinforcement learning on code that overlaps sampling, judging and learning.",
        epilog="`overlap COMMAND --help` lists the options of a command, `overlap fields` those of the configuration.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    add_commands(commands)
    argv = sys.argv[1:] if argv is None else argv
    args, rest = parser.parse_known_args(argv)
    used: OneLineParser = next((commands.choices[word] for word in argv if word in commands.choices), parser)
    if "overrides" in args:
        late = [word for word in rest if "=" in word and not word.startswith("-")]
        args.overrides = [*args.overrides, *late]
        rest = [word for word in rest if "=" not in word or word.startswith("-")]
    if getattr(args, "reward", "") or getattr(args, "style", ""):
        from overlap.rewards import reward_overrides

        args.overrides = [*reward_overrides(args.reward, args.style), *args.overrides]
    if rest:
        used.error(unknown_words(rest, argv, used.flags, fields="overrides" in args))
    return args


if __name__ == "__main__":
    raise SystemExit(command())
