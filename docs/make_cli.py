"""Writes `cli.md`: what `--help` says, for every command.

python docs/make_cli.py
"""

from __future__ import annotations

from pathlib import Path

import click
from click.testing import CliRunner

from regraft import cli

TARGET = Path(__file__).parent / "cli.md"
HEAD = """\
# The command line

<!-- Written by make_cli.py from the help of the commands. -->

Every command says this itself, with `--help` or `-h`. `regraft completion` makes the shell complete
commands and options: [how to](howto/operate.md#shell-completion).
"""


def help_of(*command: str) -> str:
    """What a command says about itself."""
    result = CliRunner().invoke(
        cli.group, [*command, "--help"], prog_name="regraft", terminal_width=80
    )
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in result.output.splitlines())


def commands() -> list[tuple[str, ...]]:
    """All commands, those of groups behind their group."""
    found: list[tuple[str, ...]] = [()]
    context = click.Context(cli.group)
    for name in cli.COMMANDS:
        found.append((name,))
        command = cli.group.get_command(context, name)
        if isinstance(command, click.Group):
            found += [(name, inner) for inner in command.list_commands(context)]
    return found


def text() -> str:
    """The page as it is written."""
    parts = [HEAD]
    for command in commands():
        title = " ".join(("regraft", *command))
        parts.append(f"\n## {title}\n\n```text\n{help_of(*command)}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
