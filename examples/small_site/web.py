"""The web page of a small site: `python web.py [PORT] [NODES]`, then http://127.0.0.1:8080/?q=sh

Every page view is a query. `/buy?page=...&to=...` has a mail sent, and is an event for searches,
which arrives though nodes die.
"""

import asyncio
import contextlib
import html
import sys
from urllib.parse import parse_qs, urlsplit

from regraft.errors import RegraftError
from regraft.services import Peer

NODES = "127.0.0.1:7447,127.0.0.1:7448"
REQUEST_MAX = 8192  # bytes that a browser may send


async def page(site: Peer, target: str) -> tuple[int, str]:
    """What a browser gets to see."""
    url = urlsplit(target)
    asked = {name: values[0] for name, values in parse_qs(url.query).items()}
    if url.path == "/buy":
        order = {"page": asked.get("page", ""), "address": asked.get("to", "")}
        try:  # nobody wants two mails: it is asked for again only if nobody got the request
            await site.query("MAIL_REQUEST", order, timeout=1.0, idempotent=False)
        except RegraftError as error:
            return error.code.http, html.escape(error.text)
        went = await site.event("ORDERED", order)
        return 200, f"ordered; {went} nodes tell the others"
    if url.path != "/":
        return 404, "there is no such page"
    try:
        found = await site.query(
            "SEARCH_REQUEST", {"text": asked.get("q", "")}, timeout=1.0, reply=list[str]
        )
    except RegraftError as error:
        return error.code.http, html.escape(error.text)
    return 200, "".join(f"<li>{html.escape(one)}" for one in found) or "nothing was found"


async def main(port: int, nodes: str) -> None:
    """Serve until somebody stops it."""
    async with Peer(nodes, type="WEBSITE") as site:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with asyncio.timeout(5):
                    request = await reader.readuntil(b"\r\n\r\n")
                status, text = await page(site, request.split()[1].decode(errors="replace"))
                body = f"<!doctype html><title>A site</title>{text}\n".encode()
                head = f"HTTP/1.1 {status} -\r\nContent-Type: text/html; charset=utf-8\r\n"
                head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
            except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", port, limit=REQUEST_MAX)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?q=sh", flush=True)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    given = [*sys.argv[1:], *("8080", NODES)[len(sys.argv) - 1 :]]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(given[0]), given[1]))
