"""`regraft queue`: make queues, look at them, put messages in and take them out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from regraft.client import Client, connect
from regraft.commands.common import (
    complete_names,
    counted,
    describe_time,
    duration,
    form_options,
    json_option,
    parse_place,
    run,
    show_message,
    show_row,
    show_rows,
    size,
    sure,
    table,
    url_option,
    yes_option,
)
from regraft.commands.pub import message_options, send_messages
from regraft.errors import LocalError, WorldError

F = TypeVar("F", bound=Callable[..., Any])
HELD_MAX = 100  # by `queue get`
ALL_S = 1.0  # without a message: then `queue get --all` has all

name_argument = click.argument("name", shell_complete=complete_names("queue-list", "queues"))


@click.group()
def queue() -> None:
    """Make queues, look at them, put messages in and take them out.

    \b
    A queue whose messages are shared by all who read it:
        regraft queue create orders --max-deliveries 5 --retry 1s
    What is in it, and who reads?
        regraft queue list
        regraft queue show orders
    Put one in, take one out:
        regraft queue send orders '{"item": 7}'
        regraft queue get orders

    A durable subscription (regraft sub --durable NAME) is a queue of one
    reader: these commands know it, too.
    """


# ------------------------------------------------------------------------------ making


def queue_options(function: F) -> F:
    """What a queue can be like."""
    count = click.IntRange(0)
    for option in reversed(
        (
            click.option("--shared/--single", default=None,
                         help="Several members share it; or only one may read. Default: shared."),
            click.option("--exclusive", is_flag=True, default=None,
                         help="One of its members reads, the others stand by."),
            click.option("--order-by", metavar="ATTRIBUTE",
                         help="Messages with the same value go to the same member, in order."),
            click.option("--in-flight", type=count, metavar="N",
                         help="Messages that each member may hold."),
            click.option("--lease", type=duration, metavar="TIME",
                         help="How long one may be held; 0: as long as the member is there."),
            click.option("--retry", type=duration, metavar="TIME",
                         help="Before what was released comes again; doubled each time,"),
            click.option("--retry-max", type=duration, metavar="TIME",
                         help="up to this. Default: a minute."),
            click.option("--max-deliveries", type=count, metavar="N",
                         help="Then it becomes a dead letter; 0: never."),
            click.option("--dead-letter", metavar="TOPIC",
                         help="Where those are published. Default: dead/NAME."),
            click.option("--dead-expired/--drop-expired", default=None,
                         help="Whether what expires becomes one, too."),
            click.option("--quota-messages", type=count, metavar="N",
                         help="As many may wait; then publishers are refused."),
            click.option("--quota-bytes", type=size, metavar="SIZE", help="The same in bytes."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


@queue.command()
@click.argument("name")
@click.option("--topic", default="", metavar="PATTERN", help="What it takes. Default: its name.")
@click.option("-w", "--where", default="", metavar="SELECTOR", help="Only what a selector allows.")
@click.option("--exact", is_flag=True, help="Not what is below the topic.")
@queue_options
@json_option
@url_option
def create(
    name: str,
    topic: str,
    where: str,
    exact: bool,
    as_data: bool,
    url: str | None,
    **options: Any,
) -> None:
    """Make the queue NAME.

    \b
    Five attempts, then a dead letter; a second, two, four ... between them:
        regraft queue create orders --max-deliveries 5 --retry 1s
    All orders of a customer to the same member, in order:
        regraft queue create billing --topic 'shop/orders/#' --order-by customer
    One member at a time; the next one takes over when it goes:
        regraft queue create leader --exclusive

    To make it again as it is does no harm. If it is there and different, the
    exit code is 2.
    """

    async def make() -> int:
        async with await connect(url) as client:
            row = await client.create_queue(name, topic, where=where, exact=exact, **given(options))
        if as_data:
            show_row(row, True)
        else:
            click.echo(f"{name} takes {row['topic'] or '#'}")
        return 0

    sys.exit(run(make()))


@queue.command()
@name_argument
@queue_options
@json_option
@url_option
def change(name: str, as_data: bool, url: str | None, **options: Any) -> None:
    """Change options of the queue NAME; the others stay as they are.

    \b
    Examples:
        regraft queue change orders --max-deliveries 10
        regraft queue change orders --lease 30s --retry 500ms
    """
    wanted = given(options)
    if not wanted:
        raise click.UsageError("say what to change: --lease, --retry, --max-deliveries, ...")

    async def alter() -> int:
        async with await connect(url) as client:
            show_row(described(await client.change_queue(name, **wanted)), as_data)
        return 0

    sys.exit(run(alter()))


# ----------------------------------------------------------------------------- looking


def described(row: dict[str, Any]) -> dict[str, Any]:
    """A queue for people: moments instead of numbers."""
    oldest = describe_time(row.get("oldest_us") or 0)
    told = {name: value for name, value in row.items() if name != "oldest_us"}
    to, origin = told.pop("moved_to", ""), told.pop("moved_from", "")
    moved = f"to {to}" if to else f"from {origin}" if origin else ""
    return told | {"oldest": oldest, "moved": moved}


LISTED = ("name", "topic", "waiting", "held", "returned", "members", "dead", "full", "oldest")


@queue.command("list")
@json_option
@url_option
def list_command(as_data: bool, url: str | None) -> None:
    """List all queues and durable subscriptions.

    Of what is waiting, some is held by members, and some was returned and
    waits for its time. Dead letters are counted since the node started.
    """

    async def look() -> int:
        async with await connect(url) as client:
            rows = await client.queues()
        if not as_data:
            told = [described(row) for row in rows]
            listed = [*LISTED, *(["moved"] if any(row["moved"] for row in told) else [])]
            rows = [{name: row[name] for name in listed} for row in told]
        show_rows(rows, as_data, "there are no queues")
        return 0

    sys.exit(run(look()))


@queue.command()
@name_argument
@json_option
@url_option
def show(name: str, as_data: bool, url: str | None) -> None:
    """Show the queue NAME: what it takes, its options, what waits, who reads it."""

    async def look() -> int:
        async with await connect(url) as client:
            row = await client.show_queue(name)
        if as_data:
            show_row(row, True)
            return 0
        members = row.pop("member_rows")
        show_row(described(row), False)
        if members:
            click.echo()
            for line in table(members):
                click.echo(line)
        return 0

    sys.exit(run(look()))


@queue.command()
@name_argument
@click.option("-w", "--where", default="", metavar="SELECTOR", help="Only what a selector allows.")
@click.option("-n", "--count", type=click.IntRange(1), help="At most so many.")
@form_options
@url_option
def browse(name: str, where: str, count: int | None, form: str | None, url: str | None) -> None:
    """Print what waits in the queue NAME, and take nothing.

    \b
    What waits for more than 100, as JSON:
        regraft queue browse orders --where 'total > 100' --json

    Oldest first, also what members hold just now.
    """
    sys.exit(run(browse_messages(name, where, count, form or "text", url)))


async def browse_messages(
    name: str, where: str, count: int | None, form: str, url: str | None
) -> int:
    """Print what waits in a mailbox."""
    left = -1 if count is None else count
    async with await connect(url) as client, client.browse(name, where=where) as waiting:
        async for message in waiting:
            show_message(message, form)
            left -= 1
            if left == 0:
                break
    return 0


# ----------------------------------------------------------------------- in and out


@queue.command()
@name_argument
@message_options
@url_option
def send(name: str, url: str | None, **how: Any) -> None:
    """Put BODY into the queue NAME; without BODY, what comes on standard input.

    It is published, persistent, to the topic that the queue takes: other
    queues and subscribers of that topic get it, too. If the queue takes
    several topics, publish to one of them: regraft pub TOPIC --persistent.

    \b
    Examples:
        regraft queue send orders '{"item": 7}' --priority 9
        regraft queue send orders 'remind me' --delay 10m -v
        cat orders.jsonl | regraft queue send orders --lines
    """

    async def topic_of(client: Client) -> str:
        row = await client.show_queue(name)
        topic = str(row["topic"])
        if not topic or {"+", "#"} & set(topic.split("/")):
            text = f"{name} takes {topic or '#'}: say the topic, regraft pub TOPIC --persistent"
            raise LocalError("bad-topic", text)
        return topic

    sys.exit(run(send_messages(topic_of, url, persistent=True, **how)))


@queue.command("get")
@name_argument
@click.option("-n", "--count", type=click.IntRange(1), default=1, show_default=True,
              help="Take so many.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Take all that there is.")
@click.option("-t", "--timeout", type=duration, metavar="TIME",
              help="Fail after this time without a message; with --all, end. Default: wait for "
              "it; with --all a second.")  # fmt: skip
@form_options
@url_option
def get_command(
    name: str,
    count: int,
    everything: bool,
    timeout: float | None,
    form: str | None,
    url: str | None,
) -> None:
    """Take messages out of the queue NAME, and print them.

    Each is accepted once it was printed. If it cannot be, because the pipe
    broke for example, it stays in the queue.

    \b
    Examples:
        regraft queue get orders
        regraft queue get orders -n 10 --json
        regraft queue get orders --all --body > orders.txt
    """
    sys.exit(run(_get(name, None if everything else count, timeout, form or "text", url)))


async def _get(
    name: str, count: int | None, timeout: float | None, form: str, url: str | None
) -> int:
    in_flight = min(count or HELD_MAX, HELD_MAX)
    if count is None and timeout is None:
        timeout = ALL_S
    left = -1 if count is None else count
    async with (
        await connect(url) as client,
        client.queue(name, existing=True, in_flight=in_flight) as taken,
    ):
        while left != 0:
            try:
                message = await taken.next(timeout)
            except WorldError as error:
                if error.code.name != "timed-out":
                    raise
                break
            show_message(message, form)
            await message.accept()
            left -= 1
        await taken.settled()
    if left > 0:
        click.echo(f"regraft: no message in {name} within {timeout:g} s", err=True)
    return 1 if left > 0 else 0


# ------------------------------------------------------------------------ as a whole


@queue.command()
@name_argument
@yes_option
@url_option
def purge(name: str, yes: bool, url: str | None) -> None:
    """Drop all that waits in the queue NAME.

    What members hold just now stays theirs.
    """
    sys.exit(run(purge_mailbox(name, yes, url)))


async def purge_mailbox(name: str, yes: bool, url: str | None) -> int:
    """Drop all that waits in a mailbox."""
    async with await connect(url) as client:
        waiting = (await client.show_queue(name))["waiting"]
        if not sure(f"Drop the {counted(waiting, 'message')} that wait in {name}?", yes):
            return 1
        click.echo(f"dropped {counted(await client.purge(name), 'message')} of {name}")
    return 0


@queue.command()
@name_argument
@click.option("--force", is_flag=True, help="Though somebody reads it.")
@yes_option
@url_option
def remove(name: str, force: bool, yes: bool, url: str | None) -> None:
    """Remove the queue NAME for good, with all that waits in it."""

    async def end() -> int:
        async with await connect(url) as client:
            waiting = (await client.show_queue(name))["waiting"]
            with_it = f"with {counted(waiting, 'message')} that waited in it"
            if not sure(f"Remove {name}, {with_it}?", yes):
                return 1
            await client.remove_queue(name, force=force)
        click.echo(f"removed {name}, {with_it}")
        return 0

    sys.exit(run(end()))


@queue.command()
@name_argument
@click.option("--from", "source", default="", metavar="NODE",
              help="The node that has it, if several have one of this name.")  # fmt: skip
@url_option
def move(name: str, source: str, url: str | None) -> None:
    """Have the queue NAME come to this node from the one that has it.

    All that waits in it comes along, and what members hold there; they are
    told where it is. What is published for it goes by its old node, which
    must stay in the network.

    \b
    Examples:
        regraft queue move orders
        regraft queue move orders --from north --url regraft://south:7447
    """

    async def come() -> int:
        async with await connect(url) as client:
            row = await client.move_queue(name, source=source)
        origin = row.get("moved_from")
        click.echo(f"{name} comes from node {origin}" if origin else f"{name} is here already")
        return 0

    sys.exit(run(come()))


@queue.command()
@name_argument
@click.argument("to")
@url_option
def rename(name: str, to: str, url: str | None) -> None:
    """Give the queue NAME the name TO.

    It goes on taking the same topics.
    """

    async def change_name() -> int:
        async with await connect(url) as client:
            await client.rename_queue(name, to)
        click.echo(f"{name} is {to} now")
        return 0

    sys.exit(run(change_name()))


@queue.command()
@name_argument
@click.argument("where")
@url_option
def seek(name: str, where: str, url: str | None) -> None:
    """Have the queue NAME go on at WHERE: back, to read again, or ahead, to skip.

    WHERE is start, #SEQUENCE, a date or moment, or an age as in -90m (write
    -- in front of it). Only what the journal still has comes again. Nobody
    may read the queue meanwhile.

    \b
    Examples:
        regraft queue seek orders '#1200'
        regraft queue seek orders 2026-11-15T10:00
        regraft queue seek orders -- -1h
    """
    place = parse_place(where)

    async def go() -> int:
        async with await connect(url) as client:
            if place.time_us:
                following = await client.seek(name, time=place.time_us / 1_000_000)
            else:
                following = await client.seek(name, place.sequence)
        click.echo(f"{name} goes on with #{following}")
        return 0

    sys.exit(run(go()))
