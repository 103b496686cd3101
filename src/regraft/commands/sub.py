"""`regraft sub`: print what is published."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, NamedTuple

import click

from regraft.client import Client, Durable, Subscription, connect
from regraft.client.subscription import EndedError
from regraft.commands.common import (
    Place,
    counted,
    form_options,
    parse_place,
    parse_settings,
    run,
    show_message,
    url_option,
)
from regraft.errors import LocalError, RegraftError, WorldError
from regraft.kernels.inbox import ReceivedMessage
from regraft.model.message import Value


class Wanted(NamedTuple):
    """What is subscribed to, and how."""

    pattern: str
    where: str
    exact: bool
    durable: str
    start: Place | None
    end: Place | None
    stream: str
    pace: bool
    in_flight: int  # of a durable subscription; 0: as the node likes
    context: dict[str, Value]
    reply: str | None  # to questions: a text,
    reply_with: str | None  # or what this command says
    move: bool = False  # of a durable subscription: it comes from another node

    @property
    def replies(self) -> bool:
        """Whether questions are to be answered."""
        return self.reply is not None or self.reply_with is not None


@click.command()
@click.argument("pattern", default="#")
@click.option("-w", "--where", default="", metavar="SELECTOR", help="Only what a selector allows.")
@click.option("-n", "--count", type=click.IntRange(0), help="End after this many messages.")
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Fail after S s without a message.",
)
@click.option("--exact", is_flag=True, help="Not what is below the topic.")
@click.option(
    "--durable",
    default="",
    metavar="NAME",
    help="Subscribe under this name: what is persistent is kept for it from now on, until it "
    "is printed.",
)
@click.option(
    "--move", is_flag=True, help="With --durable: have it come here from the node that has it."
)
@click.option(
    "--remove", is_flag=True, help="End the durable subscription for good; print nothing."
)
@click.option(
    "--from",
    "start",
    metavar="WHEN",
    help="Read a retained topic again, from start, #SEQUENCE, -90m (s, m, h, d, w) or "
    "2026-11-15T10:00 on.",
)
@click.option(
    "--until",
    "end",
    metavar="WHEN",
    help="With --from: end there, with #SEQUENCE, or before what was published at a time, which is "
    "now, or written as for --from.",
)
@click.option("--stream", default="", metavar="NAME", help="With --from: the name of the stream.")
@click.option("--pace", is_flag=True, help="With --from: as slowly as it was published.")
@click.option(
    "--context",
    multiple=True,
    metavar="NAME=VALUE",
    help="Something of this subscriber's context, for publishers' --where. May be repeated.",
)
@click.option("--reply", metavar="TEXT", help="Reply this to questions (regraft ask).")
@click.option(
    "--reply-with",
    metavar="COMMAND",
    help="Reply what a shell command says, with the question's body as its input.",
)
@form_options
@url_option
def sub(
    pattern: str,
    where: str,
    count: int | None,
    timeout: float | None,
    exact: bool,
    durable: str,
    move: bool,
    remove: bool,
    start: str | None,
    end: str | None,
    stream: str,
    pace: bool,
    context: tuple[str, ...],
    reply: str | None,
    reply_with: str | None,
    form: str | None,
    url: str | None,
) -> None:
    """Print what is published to the topics that match PATTERN.

    \b
    Everything below news, until Ctrl-C:
        regraft sub 'news/#'
    The first message, as JSON, or an error after five seconds:
        regraft sub news/eu --count 1 --timeout 5 --json
    In every city, one level deep:
        regraft sub 'weather/+'
    All orders, also those published while nobody was listening:
        regraft sub orders --durable billing
    From now on keep them for it, and read them later:
        regraft sub orders --durable billing --count 0
    Go on with them at another node:
        regraft sub orders --durable billing --move --url regraft://south
    What was published in the last hour, and what follows:
        regraft sub orders --from -1h
    All that is there, and no more:
        regraft sub orders --from start --until now
    Answer questions (regraft ask), here and in this context:
        regraft sub rooms/load --reply-with uptime --context floor=2

    '+' stands for one level of a topic, '#' for the rest. A topic without
    wildcards includes what is below it, unless --exact is given.
    """
    if durable and start is not None:
        raise click.UsageError("--durable goes on where it was; it does not go with --from")
    if remove and not durable:
        raise click.UsageError("--remove needs --durable: which subscription should end?")
    if move and (remove or not durable):
        raise click.UsageError("--move needs --durable, and does not go with --remove")
    if (pace or stream or end is not None) and start is None:
        raise click.UsageError("--until, --pace and --stream go with --from")
    if reply is not None and reply_with is not None:
        raise click.UsageError("--reply or --reply-with, not both")
    if (reply is not None or reply_with is not None) and (durable or start is not None):
        raise click.UsageError("who replies has to be there: not with --durable or --from")
    place = parse_place(start) if start is not None else None
    last = parse_place(end) if end is not None else None
    # What is not going to be printed is not fetched: it would count as delivered.
    in_flight = 0 if count is None else max(count, 1)
    wanted = Wanted(
        *(pattern, where, exact, durable, place, last, stream, pace, in_flight),
        *(parse_settings(context), reply, reply_with, move),
    )
    if remove:
        sys.exit(run(_remove(wanted, url)))
    sys.exit(run(_sub(wanted, count, timeout, form or "text", url)))


async def _sub(
    wanted: Wanted, count: int | None, timeout: float | None, form: str, url: str | None
) -> int:
    async with await connect(url) as client:
        if wanted.context:
            await client.set_context(wanted.context)
        async with await _subscribe(client, wanted) as subscription:
            _announce(client, wanted, subscription)
            # What is printed is settled.
            return await _print(subscription, count, timeout, form, wanted)


async def _subscribe(client: Client, wanted: Wanted) -> Subscription:
    pattern, where, exact = wanted.pattern, wanted.where, wanted.exact
    if wanted.durable:
        more: dict[str, Any] = {"in_flight": wanted.in_flight, "move": wanted.move}
        return await client.subscribe_durably(
            wanted.durable, pattern, where=where, exact=exact, **more
        )
    if wanted.start is not None:
        return await client.replay(
            pattern,
            where=where,
            exact=exact,
            stream=wanted.stream,
            since=wanted.start.time_us / 1_000_000,
            sequence=wanted.start.sequence,
            until=wanted.end.time_us / 1_000_000 if wanted.end is not None else 0.0,
            until_sequence=wanted.end.sequence if wanted.end is not None else 0,
            paced=wanted.pace,
        )
    return await client.subscribe(pattern, where=where, exact=exact, replies=wanted.replies)


def _announce(client: Client, wanted: Wanted, subscription: Subscription) -> None:
    if sys.stderr.isatty():
        waiting = ""
        if isinstance(subscription, Durable):
            waiting = f", {counted(subscription.waiting_at_start, 'message')} waiting"
        text = f"subscribed to {wanted.pattern!r} at {client.node_name}{waiting}; Ctrl-C ends it"
        click.echo(text, err=True)
    client.on_missed(
        lambda messages, reason: click.echo(
            f"regraft: {messages} messages were dropped: {reason}", err=True
        )
    )
    client.on_disconnect(
        lambda loss: click.echo(f"regraft: disconnected: {loss.error.text}", err=True)
    )
    client.on_reconnect(lambda: click.echo("regraft: connected again", err=True))


async def _print(
    subscription: Subscription,
    count: int | None,
    timeout: float | None,
    form: str,
    wanted: Wanted,
) -> int:
    left = count if count is not None else -1
    while left != 0:
        try:
            message = await subscription.next(timeout)
        except EndedError:
            return 0  # it has come where it was to end
        except WorldError as error:
            if error.code.name != "timed-out":
                raise
            click.echo(f"regraft: {error.text}", err=True)
            return 1
        show_message(message, form)
        if message.repliable:
            await _reply(message, wanted)
        left -= 1
    return 0


async def _reply(message: ReceivedMessage, wanted: Wanted) -> None:
    """Answer a question as the options say."""
    if wanted.reply_with is None:
        await message.reply(wanted.reply or "")
        return
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_shell(wanted.reply_with, stdin=pipe, stdout=pipe)
    output, _ = await process.communicate(message.content)
    if process.returncode:
        text = f"regraft: {wanted.reply_with!r} ended with exit code {process.returncode}"
        click.echo(f"{text}; no reply was sent", err=True)
        await message.no_reply(failed=True)
    else:
        await message.reply(output)


# -------------------------------------------------------------------------------- removal


async def _remove(wanted: Wanted, url: str | None) -> int:
    """End a mailbox. Its pattern and selector need not be given: the node knows them."""
    name = wanted.durable
    async with await connect(url) as client:
        answer = await client.inspect("journal")
        rows = [row for row in answer.get("rows", []) if row["kind"] == "mailbox"]
        found = [row for row in rows if row["name"] == name]
        if not found and answer.get("shown", 0) >= answer.get("total", 0):
            known = ", ".join(sorted(str(row["name"]) for row in rows)) or "none"
            raise LocalError("unknown-stream", f"there is no mailbox {name!r}; there are: {known}")
        durable = await _attach(client, wanted, found[0] if found else {})
        waiting = durable.waiting_at_start
        await durable.remove()
    click.echo(f"removed {name}, with {counted(waiting, 'message')} that waited in it", err=True)
    return 0


async def _attach(client: Client, wanted: Wanted, row: dict[str, object]) -> Durable:
    """Subscribe to a mailbox as it was made, as far as the node tells how that was."""
    tries = [(wanted.pattern, wanted.where, wanted.exact)]
    if row:
        pattern, where = str(row["pattern"]), str(row["where"])
        exact = row.get("exact")
        patterns = [pattern] if pattern != "#" else ["#", ""]
        exacts = [False, True] if exact is None else [bool(exact)]
        tries = [(one, where, way) for one in patterns for way in exacts]
    for number, (pattern, where, way) in enumerate(tries, 1):
        try:
            return await client.subscribe_durably(wanted.durable, pattern, where=where, exact=way)
        except RegraftError as error:
            if error.code.name != "mailbox-differs" or number == len(tries):
                raise
    raise AssertionError("there is one way at least")
