"""The services of a small site: `python services.py search|predict|mail [NODES]`.

Start as many of each as you like, and stop them with Ctrl-C: they finish what they have begun.
"""

import asyncio
import sys
from collections import Counter

import msgspec

from regraft.services import HandlerError, Service

NODES = "127.0.0.1:7447,127.0.0.1:7448"
PAGES = ["ships of the line", "shipping goods", "shell scripts", "sea shanties", "short stories"]


class Search(msgspec.Struct):
    """What somebody typed."""

    text: str


class Order(msgspec.Struct):
    """What somebody bought."""

    page: str
    address: str


def search(nodes: str) -> Service:
    """Finds pages, the popular ones first; it asks PREDICT what was meant."""
    service = Service("SEARCH", nodes)
    sold: Counter[str] = Counter()

    @service.handle("SEARCH_REQUEST")
    async def find(request: Search) -> list[str]:
        if not request.text:
            raise HandlerError("say what to search for")
        meant = await service.query("PREDICT_REQUEST", request, reply=list[str])
        found = [page for page in PAGES if any(word in page for word in meant)]
        return sorted(found, key=lambda page: -sold[page])

    @service.handle("ORDERED")
    async def ordered(order: Order) -> None:
        sold[order.page] += 1

    return service


def predict(nodes: str) -> Service:
    """Guesses words from their beginnings."""
    service = Service("PREDICT", nodes)
    words = sorted({word for page in PAGES for word in page.split()})

    @service.handle("PREDICT_REQUEST")
    def guess(request: Search) -> list[str]:  # not async: it runs in a thread
        return [word for word in words if word.startswith(request.text.lower())]

    return service


def mail(nodes: str) -> Service:
    """Says thank you."""
    service = Service("MAIL", nodes)

    @service.handle("MAIL_REQUEST")
    async def thank(order: Order) -> None:
        print(f"to {order.address}: thank you for buying {order.page!r}", flush=True)

    return service


if __name__ == "__main__":
    kinds = {"search": search, "predict": predict, "mail": mail}
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    asyncio.run(kinds[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else NODES).run())
