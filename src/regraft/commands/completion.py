"""`regraft completion`: let the shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

INSTALL = {
    "bash": 'eval "$(regraft completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(regraft completion zsh)"    # in ~/.zshrc',
    "fish": "regraft completion fish | source     # in ~/.config/fish/config.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete this command.

    \b
    For good, in the file your shell reads at its start:
        eval "$(regraft completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None
    root = ctx.find_root().command
    click.echo(found(root, {}, "regraft", "_REGRAFT_COMPLETE").source())
