"""`regraft call` and `regraft services`: ask a service, and see which there are."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import click

from regraft.client import connect
from regraft.client.address import resolve
from regraft.commands.common import json_option, run, show_rows, url_option
from regraft.errors import LocalError, RegraftError
from regraft.services import Peer, Route

HEALTH_S = 2.0  # for services to say how they are


@click.command()
@click.argument("type")
@click.argument("body", required=False)
@click.option("-t", "--timeout", type=float, default=5.0, show_default=True, metavar="SECONDS",
              help="How long to wait for the answer, all phases together.")  # fmt: skip
@click.option("--to", metavar="ID", default="", help="Ask this instance, and no other.")
@click.option("--peer", metavar="TYPE", default="",
              help="Ask any peer of this type, whatever the rules say.")  # fmt: skip
@click.option("--event", "kind", flag_value="event",
              help="Send it by all nodes, and wait for no answer.")  # fmt: skip
@click.option("--send", "kind", flag_value="send",
              help="Send it by one node, and wait for no answer.")  # fmt: skip
@click.option("--once", is_flag=True, help="Never have it handled twice (not idempotent).")
@click.option("--time", "timed", is_flag=True, help="Say on stderr how long it took.")
@url_option
def call(
    type: str,
    body: str | None,
    timeout: float,
    to: str,
    peer: str,
    kind: str | None,
    once: bool,
    timed: bool,
    url: str | None,
) -> None:
    """Ask a service: send a message of TYPE with BODY, and print the answer.

    BODY is sent as it is; without one, or as -, it is read from stdin.

    \b
    Examples:
        regraft call SEARCH_REQUEST '{"text": "ship"}'
        regraft call SEARCH_REQUEST -u a:7447,b:7447 -t 1 < request.json
        regraft call CACHE_CLEARED '' --event
    """
    if timeout <= 0:
        raise LocalError("bad-message", "--timeout must be above 0")
    data = body.encode() if body not in (None, "-") else sys.stdin.buffer.read()
    rules = (Route(peer),) if peer else None
    sys.exit(run(_call(type, data, timeout, to, rules, kind, once, timed, url)))


async def _call(
    type: str,
    data: bytes,
    timeout: float,
    to: str,
    rules: tuple[Route, ...] | None,
    kind: str | None,
    once: bool,
    timed: bool,
    url: str | None,
) -> int:
    async with Peer(url) as peer:
        began = time.monotonic()
        if kind == "event":
            went = await peer.event(type, data)
            click.echo(f"sent by {went} of {len(peer.lines)} nodes", err=True)
        elif kind == "send":
            await peer.send(type, data, to=to, rules=rules)
        else:
            answer = await peer.query(
                type, data, timeout=timeout, idempotent=not once, to=to, rules=rules
            )
            out = sys.stdout
            out.buffer.write(answer.content)
            if out.isatty():
                out.write("\n")
            out.flush()
        if timed:
            click.echo(f"{1000 * (time.monotonic() - began):.2f} ms", err=True)
        if kind:
            await asyncio.gather(*(line.flush(timeout) for line in peer.lines if line.is_up))
    return 0


@click.command()
@json_option
@click.argument("peer", required=False)
@url_option
def services(as_data: bool, peer: str | None, url: str | None) -> None:
    """Show which services there are: load, errors and latency of each.

    With several addresses in --url, all of these nodes are asked. PEER is a
    peer type, to see only those.

    \b
    Examples:
        regraft services
        regraft services SEARCH -u a:7447,b:7447
    """
    sys.exit(run(_services(as_data, peer, url)))


async def _services(as_data: bool, wanted: str | None, url: str | None) -> int:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    failed = 0
    for address in resolve(url):
        try:
            async with await connect(str(address), reconnect=False) as client:
                report = await client.inspect("services")
        except RegraftError as error:
            click.echo(f"regraft: {address}: {error.text}", err=True)
            failed = 1
            continue
        for row in report["rows"]:
            if wanted in (None, row["peer"]):
                known = found.setdefault(
                    (row["peer"], row["client"]),
                    {"peer": row["peer"], "client": row["client"], "nodes": 0, "in_flight": 0},
                )
                known["nodes"] += int(row["here"])
                known["in_flight"] += row.get("in_flight", 0)
    if found:
        await _ask(list(found.values()), url)
    show_rows(list(found.values()), as_data, "no services")
    return failed


async def _ask(rows: list[dict[str, Any]], url: str | None) -> None:
    """Have each of them say how it is."""
    async with Peer(url) as peer:
        answers = await asyncio.gather(
            *(peer.ask_health(row["client"], HEALTH_S) for row in rows), return_exceptions=True
        )
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, dict):
            for name in ("running", "waiting", "handled", "errors", "p50_ms", "p99_ms"):
                row[name] = answer[name]
            row["state"] = "draining" if answer["draining"] else "well"
        elif isinstance(answer, RegraftError):
            row["state"] = "no service" if answer.code.name == "timed-out" else answer.text
        else:
            raise answer
