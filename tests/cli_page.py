"""docs/cli.md from the help of the commands: `python tests/cli_page.py` writes it, test_cli_page.py compares it."""

from __future__ import annotations

import argparse
from pathlib import Path

from aniso.cli import parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

What `aniso --help` and the help of each command say; `python tests/cli_page.py` writes this page from them.

```
pip install "aniso[cli]"                            # rich, for progress bars; without it there are plain lines
aniso build vectors.npy -o words.aniso --recall 0.95
aniso search words.aniso queries.npy -k 10
```

Progress goes to stderr: bars on a terminal, plain lines elsewhere. `--json` is for programs. A file is written whole or
not at all; ctrl-C at any moment leaves the old one.
"""


def page() -> str:
    """The text of docs/cli.md."""
    whole = parser()
    commands = next(one for one in whole._actions if isinstance(one, argparse._SubParsersAction))
    parts = [INTRODUCTION, _block("aniso", whole)]
    parts += [_block(f"aniso {name}", command) for name, command in commands.choices.items()]
    return "\n".join(parts)


def _block(title: str, one: argparse.ArgumentParser) -> str:
    return f"## {title}\n\n```\n{one.format_help().strip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
