"""`regraft trace`: who gets a message, why somebody does not, how a subscription travelled."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from regraft.client import Client, Traced, Travelled, Why, connect
from regraft.client.traced import (
    Report,
    Row,
    filter_text,
    name_of,
    stop_text,
    subject_text,
)
from regraft.commands.common import F, counted, json_option, parse_settings, run, url_option
from regraft.commands.topology import PICTURE, PLAIN_PICTURE
from regraft.errors import LocalError
from regraft.model.reasons import reason_text

GETS, GETS_NOT = "-> ", "x  "


@click.group()
def trace() -> None:
    """Follow a message or a subscription through all nodes.

    \b
    Who would get this message? It is not published:
        regraft trace who orders/eu --set price=12
    Publish it, and see where it goes:
        regraft trace publish orders/eu 'an order' --set price=12
    Why does this client not get it?
        regraft trace why orders/eu --set price=12 --client billing
    How far was its subscription told?
        regraft trace subscription --client billing
    """


def message_options(function: F) -> F:
    """The options that say what the message is."""
    for option in (
        click.option("-t", "--timeout", type=click.FloatRange(min=0, min_open=True), default=5.0,
                     show_default=True, metavar="S", help="How long to wait for reports."),
        click.option("--priority", type=click.IntRange(0, 9), help="Its priority."),
        click.option("--ttl", type=float, metavar="S", help="It expires after so many seconds."),
        click.option("--persistent", is_flag=True, help="It is persistent."),
        click.option("-w", "--where", default="", metavar="SELECTOR",
                     help="It is for those whose context satisfies this."),
        click.option("--context", "contexts", multiple=True, metavar="NAME=VALUE",
                     help="An attribute of the publisher's context. May be repeated."),
        click.option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE",
                     help="An attribute: a number, true, false, or text. May be repeated."),
        click.argument("body", required=False),
        click.argument("topic"),
    ):  # fmt: skip
        function = option(function)
    return function


def subscriber_options(function: F) -> F:
    """The options that say whose subscription is meant."""
    for option in (
        click.option("--subscription", type=click.IntRange(min=1), default=None, metavar="ID",
                     help="Only this one of the client's."),
        click.option("--durable", default="", metavar="NAME", help="A mailbox or queue."),
        click.option("--client", default="", metavar="ID", help="A client, by its id."),
    ):  # fmt: skip
        function = option(function)
    return function


@trace.command()
@message_options
@json_option
@url_option
def who(as_data: bool, url: str | None, **given: Any) -> None:
    """Say who would get a message to TOPIC; it is not published.

    Each node that it would come to reports what it decides, and by which
    filter. BODY counts by its size only. The exit code is 0 if all nodes have
    answered, and 1 if not.

    \b
    Examples:
        regraft trace who orders/eu --set price=12
        regraft trace who offers -w "ctx.floor = 2" --json
    """
    sys.exit(run(_message(False, as_data, url, given)))


@trace.command()
@message_options
@json_option
@url_option
def publish(as_data: bool, url: str | None, **given: Any) -> None:
    """Publish BODY to TOPIC, and follow it.

    The same report as of `who`, of what has really happened. BODY as - is read
    from stdin. A traced message has 64 KiB at most.

    \b
    Examples:
        regraft trace publish orders/eu 'an order' --set price=12
        echo hello | regraft trace publish greetings -
    """
    sys.exit(run(_message(True, as_data, url, given)))


@trace.command()
@message_options
@subscriber_options
@json_option
@url_option
def why(
    as_data: bool,
    url: str | None,
    client: str,
    durable: str,
    subscription: int | None,
    **given: Any,
) -> None:
    """Say why a subscriber would get a message to TOPIC, or would not; it is not published.

    The subscriber is found wherever in the network it is. The exit code is 0
    if it would get the message, and 1 if not.

    \b
    Examples:
        regraft trace why orders/eu --set price=12 --client billing
        regraft trace why orders/eu --persistent --durable audit
    """
    _check_subscriber(client, durable)
    subscriber = {"client": client, "durable": durable, "subscription": subscription or 0}
    sys.exit(run(_why(as_data, url, given, subscriber)))


@trace.command()
@subscriber_options
@click.option("-t", "--timeout", type=click.FloatRange(min=0, min_open=True), default=5.0,
              show_default=True, metavar="S", help="How long to wait for reports.")  # fmt: skip
@json_option
@url_option
def subscription(
    client: str,
    durable: str,
    subscription: int | None,
    timeout: float,
    as_data: bool,
    url: str | None,
) -> None:
    """Show how a subscription travelled: what each node told its neighbours of it.

    \b
    Examples:
        regraft trace subscription --client billing
        regraft trace subscription --client billing --subscription 2 --json
    """
    _check_subscriber(client, durable)
    found = (client, durable, subscription or 0, timeout)
    sys.exit(run(_subscription(as_data, url, *found)))


def _check_subscriber(client: str, durable: str) -> None:
    if bool(client) == bool(durable):
        raise LocalError("bad-message", "say whose subscription: --client ID, or --durable NAME")


# ------------------------------------------------------------------------------ asking


async def _asking(client: Client, given: dict[str, Any]) -> tuple[str, bytes, dict[str, Any]]:
    """The topic, the body and the rest that a message is made of."""
    body = given.pop("body") or ""
    data = sys.stdin.buffer.read() if body == "-" else body.encode()
    contexts = given.pop("contexts")
    if contexts:
        await client.set_context(parse_settings(contexts))
    given["attributes"] = parse_settings(given.pop("settings"))
    more = {name: value for name, value in given.items() if value not in (None, "")}
    return more.pop("topic"), data, more


async def _message(publish: bool, as_data: bool, url: str | None, given: dict[str, Any]) -> int:
    async with await connect(url, connect_timeout=5.0) as client:
        topic, body, more = await _asking(client, given)
        found = await (client.trace if publish else client.who)(topic, body, **more)
    if as_data:
        click.echo(json.dumps(found.as_data(), ensure_ascii=False))
    else:
        for line in draw(found, message_lines):
            click.echo(line)
        takers = counted(len(found.receivers), "receiver")
        _summary(found, f"{takers} at {counted(len(found.reports), 'node')}")
    return 0 if found.complete else 1


async def _why(
    as_data: bool, url: str | None, given: dict[str, Any], subscriber: dict[str, Any]
) -> int:
    async with await connect(url, connect_timeout=5.0) as client:
        topic, body, more = await _asking(client, given)
        found: Why = await client.why(topic, body, **subscriber, **more)
    if as_data:
        click.echo(json.dumps(found.as_data(), ensure_ascii=False))
    else:
        for line in found.reasons():
            click.echo(line)
        _summary(found, f"{counted(len(found.reports), 'node')} answered")
    return 0 if found.gets else 1


async def _subscription(
    as_data: bool, url: str | None, name: str, durable: str, id: int, timeout: float
) -> int:
    async with await connect(url, connect_timeout=5.0) as client:
        found = await client.trace_subscription(
            client=name, durable=durable, subscription=id, timeout=timeout
        )
    if as_data:
        click.echo(json.dumps([one.as_data() for one in found], ensure_ascii=False))
    elif not found:
        click.echo("there is no such subscription at any node", err=True)
    else:
        for one in found:
            _travel(one)
    return 0 if found and all(one.complete for one in found) else 1


def _travel(found: Travelled) -> None:
    if found.row:
        click.echo(subject_text(found.row))
    kinds = {"mailbox": reason_text("durable"), "group": "by its members"}
    if found.row.get("filter"):
        kinds["subscription"] = reason_text("own-told")
    if found.row.get("kind") in kinds:
        at = name_of(found.by_node.get(found.home, {}))
        click.echo(f"  at node {at}: {kinds[found.row['kind']]}")
    else:
        for line in draw(found, told_lines, found.home):
            click.echo(f"  {line}")
    _summary(found, f"{counted(len(found.reports), 'node')} answered")


# ----------------------------------------------------------------------------- showing


def _summary(found: Traced, what: str) -> None:
    end = "" if found.complete else f"; incomplete: {found.reason}"
    if found.missing:
        end += f"; no word from node {', '.join(found.missing)}"
    click.echo(what + end, err=True)


def draw(
    found: Traced, lines: Callable[[Report, Report | None], list[str]], start: str = ""
) -> list[str]:
    """Reports as a tree: a line for each node, and below it what it decided."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    branch, last, through, empty = PICTURE if encoding.startswith("utf") else PLAIN_PICTURE
    steps = list(found.walk(start))
    drawn: list[str] = []
    above: list[Report] = []
    for place, (report, lasts) in enumerate(steps):
        del above[len(lasts) :]
        before = above[-1] if above else None
        above.append(report)
        more = place + 1 < len(steps) and len(steps[place + 1][1]) > len(lasts)
        rest = "".join(empty if ended else through for ended in lasts)
        lead = rest[: -len(empty)] + (last if lasts[-1] else branch) if lasts else ""
        first, *others = lines(report, before)
        drawn.append(f"{lead}{first}")
        drawn += [f"{rest}{through if more else empty}{other}" for other in others]
    return drawn


def message_lines(report: Report, above: Report | None) -> list[str]:
    """What a node decided about a message."""
    head = click.style(name_of(report), bold=True)
    if above is not None:
        took = max(0, report["at_us"] - above["at_us"]) / 1000
        way: Row = next((row for row in above["links"] if row["node"] == report["node"]), {})
        by = filter_text(way.get("filter", {}))
        head += f"  +{took:.1f} ms{', by filter ' + by if by else ''}"
    lines = [head, *(f"! {reason_text(note)}" for note in report["notes"])]
    lines += [f"{GETS_NOT}{stop_text(stop)}" for stop in report["stopped"]]
    for row in report.get("takers", ()):
        lines.append(_taker(row))
    for row in report["links"]:
        if not row["goes"] and row["reason"] not in ("came-from", "stopped"):
            lines.append(f"{GETS_NOT}node {name_of(row)}: {reason_text(row['reason'])}")
        elif row["reason"] == "link-waits":
            lines.append(f"{GETS}node {name_of(row)}: {reason_text('link-waits')}")
    if report["left_out"]:
        lines.append(f"... and {report['left_out']} more (limit trace_bytes)")
    return lines


def _taker(row: Row) -> str:
    name = click.style(str(row.get("client") or row.get("name") or row["kind"]), fg="cyan")
    text = f"{GETS if row['gets'] else GETS_NOT}{name}  "
    if row["kind"] == "subscription":
        text += subject_text(row)
    else:
        text += row["kind"] + (f" to {filter_text(row)}" if filter_text(row) else "")
    if row.get("members"):
        text += f", members {', '.join(row['members'])}"
    if row.get("home_name"):
        text += f" of node {row['home_name']}"
    return text if row["reason"] == "delivered" else f"{text}: {reason_text(row['reason'])}"


def told_lines(report: Report, above: Report | None) -> list[str]:
    """What a node told its neighbours of a filter."""
    lines = [click.style(name_of(report), bold=True)]
    lines += [f"! {reason_text(note)}" for note in report["notes"]]
    for row in report["told"]:
        if above is not None and row["node"] == above["node"]:
            continue
        told = row["reason"] in ("told", "covered", "kept-told")
        by = filter_text(row.get("filter", {})) if row["reason"] != "told" else ""
        text = f"{GETS if told else GETS_NOT}node {name_of(row)}: {reason_text(row['reason'])}"
        lines.append(f"{text}{': ' + by if by else ''}")
    return lines
