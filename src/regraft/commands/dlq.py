"""`regraft dlq`: dead letters, why they are dead, and how they live again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from regraft.client import connect
from regraft.client.administration import DEAD_LETTERS
from regraft.commands.common import (
    as_json,
    as_text,
    complete_names,
    counted,
    describe_value,
    run,
    show_row,
    show_rows,
    url_option,
    yes_option,
)
from regraft.commands.queue import purge_mailbox
from regraft.errors import LocalError
from regraft.kernels.inbox import ReceivedMessage

F = TypeVar("F", bound=Callable[..., Any])
BODY_SHOWN = 40  # characters of it in a list


def mailbox_option(function: F) -> F:
    """The option that says where the dead letters are."""
    return click.option(
        "-m",
        "--mailbox",
        default=DEAD_LETTERS,
        show_default=True,
        metavar="NAME",
        shell_complete=complete_names("queue-list", "queues"),
        help="The mailbox or queue that takes them.",
    )(function)


@click.group()
def dlq() -> None:
    """Look at dead letters, and give them back.

    A message becomes one when it is rejected, was delivered as often as its
    queue allows (--max-deliveries), or expires where that is asked for. It is
    published to dead/QUEUE with the reason; if nobody else takes that, the
    node keeps it in the mailbox dead-letters.

    \b
    What is there, and why?
        regraft dlq list
        regraft dlq show 17
    The mistake is mended, try them again:
        regraft dlq retry 17 18
        regraft dlq retry --all
    """


def row_of(message: ReceivedMessage) -> dict[str, Any]:
    """A dead letter in a list."""
    attributes = message.attributes
    body = message.content.decode(errors="replace")
    body = "".join(c if c.isprintable() else " " for c in body[: BODY_SHOWN + 1])
    return {
        "sequence": str(message.sequence),
        "reason": attributes.get("dead_reason", ""),
        "queue": attributes.get("dead_mailbox", ""),
        "topic": attributes.get("dead_topic", message.topic),
        "deliveries": attributes.get("dead_deliveries", ""),
        "at": describe_value(attributes.get("dead_at", "")),
        "text": attributes.get("dead_text", ""),
        "body": body if len(body) <= BODY_SHOWN else body[:BODY_SHOWN] + "...",
    }


@dlq.command("list")
@mailbox_option
@click.option("-w", "--where", default="", metavar="SELECTOR", help="Only what a selector allows.")
@click.option("-n", "--rows", type=click.IntRange(1), default=1000, help="At most so many rows.")
@click.option("--json", "as_data", is_flag=True, help="One JSON object per line.")
@url_option
def list_command(mailbox: str, where: str, rows: int, as_data: bool, url: str | None) -> None:
    """List dead letters, the oldest first.

    \b
    Those of one queue that were rejected:
        regraft dlq list -w "dead_mailbox = 'orders' AND dead_reason = 'rejected'"
    """

    async def look() -> int:
        found: list[dict[str, Any]] = []
        more = False
        async with await connect(url) as client, client.browse(mailbox, where=where) as letters:
            async for message in letters:
                if len(found) == rows:
                    more = True
                    break
                found.append(as_json(message) if as_data else row_of(message))
        if as_data:
            for row in found:
                click.echo(json.dumps(row, ensure_ascii=False))
        else:
            show_rows(found, False, "there are no dead letters")
        if more:
            click.echo(f"more than {rows}: not all are shown (--rows)", err=True)
        return 0

    sys.exit(run(absent(look(), mailbox)))


async def absent(coroutine: Any, mailbox: str) -> int:
    """The node makes the mailbox with the first dead letter: without it, there is none."""
    try:
        return int(await coroutine)
    except LocalError as error:
        if error.code.name != "unknown-mailbox" or mailbox != DEAD_LETTERS:
            raise
        click.echo("there are no dead letters", err=True)
        return 0


@dlq.command()
@click.argument("sequence", type=click.IntRange(1))
@mailbox_option
@click.option("--json", "as_data", is_flag=True, help="As one JSON object.")
@url_option
def show(sequence: int, mailbox: str, as_data: bool, url: str | None) -> None:
    """Show one dead letter: all that is known of it, and the message itself."""

    async def look() -> int:
        async with await connect(url) as client, client.browse(mailbox) as letters:
            async for message in letters:
                if message.sequence < sequence:
                    continue
                if message.sequence > sequence:
                    break
                if as_data:
                    show_row(as_json(message), True)
                else:
                    _tell(message)
                return 0
        raise LocalError("not-waiting", f"there is no dead letter {sequence} in {mailbox}")

    sys.exit(run(look()))


def _tell(message: ReceivedMessage) -> None:
    known = row_of(message)
    del known["body"]
    history = message.attributes.get("dead_history")
    if history:
        known["earlier"] = ", ".join(
            f"{one.get('reason')} in {one.get('mailbox')}" for one in json.loads(str(history))
        )
    show_row({name: value for name, value in known.items() if value != ""}, False)
    click.echo()
    click.echo(as_text(message))


@dlq.command()
@click.argument("sequences", type=click.IntRange(1), nargs=-1, metavar="[SEQUENCE]...")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--to", default="", metavar="QUEUE", help="To this queue, not where each died.")
@mailbox_option
@url_option
def retry(
    sequences: tuple[int, ...], everything: bool, to: str, mailbox: str, url: str | None
) -> None:
    """Give dead letters back to the queues in which they died.

    Each comes there as a new message, with its original topic, and leaves the
    dead letters in the same moment.

    \b
    Examples:
        regraft dlq retry 17
        regraft dlq retry --all --to orders
    """
    if bool(sequences) == everything:
        raise click.UsageError("say which: sequences as regraft dlq list has them, or --all")

    def progress(done: int, left: int) -> None:
        if left and sys.stderr.isatty():
            click.echo(f"\r{done:,} given back, {left:,} left ", nl=False, err=True)

    async def give_back() -> int:
        async with await connect(url) as client:
            count = await client.retry_dead(
                *sequences, mailbox=mailbox, everything=everything, to=to, progress=progress
            )
        click.echo(f"gave back {counted(count, 'dead letter')}")
        return 0 if count >= len(sequences) else 1

    sys.exit(run(absent(give_back(), mailbox)))


@dlq.command()
@mailbox_option
@yes_option
@url_option
def purge(mailbox: str, yes: bool, url: str | None) -> None:
    """Drop all dead letters."""
    sys.exit(run(absent(purge_mailbox(mailbox, yes, url), mailbox)))
