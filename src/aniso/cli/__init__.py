"""The command `aniso`. A command is a function that adds its parser and names what runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from aniso.cli import demo, indexes, measure, reproduce
from aniso.cli.terminal import Commands, Help, one_line

__all__ = ["main", "parser"]

EPILOG = """\
examples:
  aniso build vectors.npy -o words.aniso --recall 0.95
  aniso search words.aniso queries.npy -k 10
  aniso demo

Vectors are read from .npy, .npz, .hdf5, .h5, .fvecs, .bvecs, .ivecs and .parquet files;
"file::name" picks an array within one.
Results go to stdout, progress and errors to stderr.

exit codes:
  0    done
  1    a claim of the paper does not hold (reproduce), or a fault of aniso itself
  2    a wrong argument, file or library: one line on stderr says what to do
  130  stopped by ctrl-C; no file is left half-written
"""

COMMANDS: tuple[Callable[[Commands], None], ...] = (
    indexes.add_build,
    indexes.add_search,
    indexes.add_info,
    measure.add_tune,
    measure.add_bench,
    demo.add_demo,
    reproduce.add_reproduce,
)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = argparse.ArgumentParser(
        prog="aniso",
        description="Maximum-inner-product and nearest-neighbour search on a CPU.",
        epilog=EPILOG,
        formatter_class=Help,
    )
    whole.add_argument("--version", action="version", version=_version())
    commands: Commands = whole.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for add in COMMANDS:
        add(commands)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what the user can mend is one line on stderr."""
    try:
        options = parser().parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the results has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ImportError, ValueError, TypeError, KeyError, MemoryError) as error:
        print(f"aniso: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("aniso: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        what = f"{type(error).__name__}: {one_line(error)}"
        print(f"aniso: a fault of aniso itself: {what} (python -X dev -m aniso ... shows where)", file=sys.stderr)
        return 1
    return code


def _version() -> str:
    from importlib.metadata import version

    return f"aniso {version('aniso')}"
