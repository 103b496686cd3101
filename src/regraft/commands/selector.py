"""`regraft selector`: look at a selector, and try it on a message."""

from __future__ import annotations

import json
import sys

import click

from regraft.commands.common import parse_settings
from regraft.model.message import Message
from regraft.model.selector import Selector, cost


@click.command()
@click.argument("text")
@click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An attribute of the message to try it on. May be repeated.",
)
@click.option("--topic", default="", metavar="TOPIC", help="The topic of that message.")
@click.option("--body", default="", metavar="TEXT", help="The body of that message.")
@click.option("--priority", type=click.IntRange(0, 9), default=4, help="Its priority.")
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
def selector(
    text: str, settings: tuple[str, ...], topic: str, body: str, priority: int, as_json: bool
) -> None:
    """Explain the selector TEXT; with a message, say what it makes of it.

    \b
    What is it, in its canonical form?
        regraft selector "5 < price and not symbol in ('B','A')"
    Does it match, and why?
        regraft selector "price > 100 AND symbol = 'ACME'" --set price=99 --set symbol=ACME

    Exit codes: 0, or 1 if there is a message and it does not match.
    """
    parsed = Selector.parse(text)
    tried = bool(settings or topic or body)
    message = Message(topic or "topic", body.encode(), parse_settings(settings), priority=priority)
    matches = parsed.matches(message)
    if as_json:
        answer: dict[str, object] = {
            "canonical": parsed.text,
            "names": sorted(_spelled(name.kind.value, name.name) for name in parsed.names),
            "cost": cost(parsed.ast),
        }
        if tried:
            answer["result"] = parsed.evaluate(message)
            answer["matches"] = matches
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        click.echo(f"canonical  {parsed.text}")
        names = sorted(_spelled(name.kind.value, name.name) for name in parsed.names)
        click.echo(f"looks at   {', '.join(names) or 'nothing'}")
        if tried:
            for line in parsed.explain(message):
                click.echo(f"  {line}")
            click.secho(
                "matches" if matches else "does not match", fg="green" if matches else "red"
            )
    sys.exit(0 if matches or not tried else 1)


def _spelled(kind: str, name: str) -> str:
    return {"attribute": "", "header": "$", "context": "ctx."}[kind] + name
