"""The command `regraft`.

- A new command is one line in COMMANDS. It is imported when it is called, so that
  `regraft --version` waits for nobody.
- What fails says so in one line on stderr, `regraft: ...`, without a traceback. The exit codes
  are in the help of the group.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import click

from regraft import __version__
from regraft.errors import LocalError, RegraftError

COMMANDS = {
    # name: where it is defined
    "serve": "regraft.cli:serve",
    "sub": "regraft.commands.sub:sub",
    "pub": "regraft.commands.pub:pub",
    "ask": "regraft.commands.ask:ask",
    "advertise": "regraft.commands.advertise:advertise",
    "queue": "regraft.commands.queue:queue",
    "topic": "regraft.commands.topic:topic",
    "dlq": "regraft.commands.dlq:dlq",
    "delayed": "regraft.commands.delayed:delayed",
    "tx": "regraft.commands.tx:tx",
    "call": "regraft.commands.call:call",
    "services": "regraft.commands.call:services",
    "rules": "regraft.commands.rules:rules",
    "inspect": "regraft.commands.inspect:inspect",
    "trace": "regraft.commands.trace:trace",
    "link": "regraft.commands.link:link",
    "custody": "regraft.commands.custody:custody",
    "node": "regraft.commands.node:node",
    "journal": "regraft.commands.journal:journal",
    "pipeline": "regraft.commands.pipeline:pipeline",
    "selector": "regraft.commands.selector:selector",
    "bench": "regraft.commands.bench:bench",
    "completion": "regraft.commands.completion:completion",
    "version": "regraft.cli:version",
}
FAILED, MISUSED, INTERRUPTED = 1, 2, 130


class Commands(click.Group):
    """The group: finds commands in COMMANDS, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RegraftError as error:
            click.echo(f"regraft: {error.text}", err=True)
            ctx.exit(MISUSED if isinstance(error, LocalError) else FAILED)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="regraft %(version)s")
def group() -> None:
    """A message bus whose tree of brokers re-grafts its branches when they break.

    \b
    Start a node on this machine, with its data in ./regraft-data:
        regraft serve
    On another port, with a file, and with more room for each subscriber:
        regraft serve -c regraft.toml -p 7448 --limit queue_bytes=64MiB
    See what a node would run with, and where each setting comes from:
        regraft serve -c regraft.toml --print-config

    Every setting may come from a flag, a variable (REGRAFT_PORT), or the file,
    in this order.

    \b
    Exit codes:
        0    fine
        1    failed: the network or the disk
        2    wrong usage or configuration
        130  interrupted
    """


@click.command()
@click.option("-c", "--config", "file", metavar="FILE", help="Configuration file, in TOML.")
@click.option("-p", "--port", metavar="PORT", help="Port to listen on; 0 takes any free one.")
@click.option("--host", metavar="HOST", help="Address to listen on.")
@click.option("--data", metavar="DIR", help="Folder for what the node keeps.")
@click.option("--name", metavar="NAME", help="Name of the node, for people.")
@click.option("--join", metavar="HOST:PORT,...", help="Other nodes by which to join their network.")
@click.option("--parent", metavar="HOST:PORT", help="The node to be below, come what may.")
@click.option("--advertise", metavar="HOST:PORT", help="Address by which others reach this node.")
@click.option("--advertisements", metavar="on|off", help="Whether the network routes by them.")
@click.option("--offers", metavar="TOPIC,...", help="What this node offers for all clients then.")
@click.option("--rules", metavar="FILE", help="Rules for messages of services, in TOML.")
@click.option("--filters", metavar="MODULE[:CLASS],...",
              help="Filters of applications that it knows, as Python finds them.")  # fmt: skip
@click.option("--limit", "limits", metavar="NAME=VALUE", multiple=True,
              help="Change a limit, as in queue_bytes=64MiB. May be repeated.")  # fmt: skip
@click.option("--log-format", metavar="text|json", help="Form of the log on stderr.")
@click.option("-v", "--verbose", is_flag=True, help="Log everything (level debug).")
@click.option("-t", "--test", is_flag=True, help="Test the configuration and exit.")
@click.option(
    "--retain",
    metavar="TOPIC",
    multiple=True,
    help="Keep what is persistent of this topic, to be replayed. May be repeated.",
)
@click.option("--print-config", is_flag=True, help="Print the effective configuration and exit.")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    file: str | None,
    limits: tuple[str, ...],
    retain: tuple[str, ...],
    verbose: bool,
    test: bool,
    print_config: bool,
    **settings: str | None,
) -> None:
    """Run a node until it is told to stop (SIGINT, SIGTERM).

    \b
    Examples:
        regraft serve
        regraft serve -c /etc/regraft/regraft.toml
        regraft serve -p 0 --data /tmp/one -v
        regraft serve -p 7448 --data /tmp/two --join 127.0.0.1:7447
        REGRAFT_LIMITS__FRAME_BYTES=4MiB regraft serve -t
    """
    from regraft import config

    flags: dict[str, object] = {**settings, "log_level": "debug" if verbose else None}
    flags |= _limits(limits)
    loaded = config.load(flags, os.environ, Path(file) if file is not None else None, retain)
    if print_config:
        click.echo(config.describe(loaded), nl=False)
    if test:
        for warning in config.warnings(loaded):
            click.echo(f"regraft: warning: {warning}", err=True)
        # Where both are asked for, stdout belongs to the file that is printed.
        click.echo("configuration ok", err=print_config)
    if print_config or test:
        return

    from regraft.runtime.serve import run

    ctx.exit(run(loaded))


def _limits(pairs: tuple[str, ...]) -> dict[str, object]:
    flags: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise LocalError(
                "bad-configuration", f"--limit {pair}: write NAME=VALUE, as in frame_bytes=2MiB"
            )
        flags[f"limits.{name.strip()}"] = value.strip()
    return flags


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Print the version, and what this installation runs on."""
    import json
    import platform
    from importlib import metadata

    from regraft import kernels

    try:
        uvloop = metadata.version("uvloop")
    except metadata.PackageNotFoundError:
        uvloop = "absent"
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "kernels": kernels.describe(),
        "uvloop": uvloop,
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            click.echo(f"{name:<8} {value}")


def main() -> None:
    """The entry point, the same name in every help text however it was started."""
    group(prog_name="regraft")
