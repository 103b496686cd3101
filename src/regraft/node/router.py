"""From a topic to a route: the subscription table and the lane, brought together.

A route is worked out once per topic and remembered until subscriptions change. Topics with the same
takers share one route, so that the lane can join their messages to one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from regraft.errors import CODES, LocalError
from regraft.kernels.lane import Lane, Outlet, Route, Source
from regraft.kernels.selection import Choice, Test, compile_selector
from regraft.limits import Limits
from regraft.model.selector import Selector
from regraft.model.topics import check_topic
from regraft.model.varint import write_varint
from regraft.routing.table import SubscriptionTable

Authorize = Callable[[str, str, str], bool]  # (principal, action, topic) -> yes or no


class Router:
    """Knows who takes what, and keeps the lane's view of it up to date."""

    def __init__(self, limits: Limits, authorize: Authorize) -> None:
        self.table = SubscriptionTable()
        self.lane = Lane(
            limits.frame_bytes,
            limits.control_frame_bytes,
            limits.topics_cached_per_session,
            self._resolve,
        )
        self._authorize = authorize
        self._topics_max = limits.topics_cached
        self._outlets: dict[int, Outlet] = {}
        self._principals: dict[int, str] = {}
        self._routes: dict[bytes, Route] = {}
        self._shared: dict[tuple[tuple[int, bytes], ...], Route] = {}
        self._encoded: dict[tuple[int, ...], bytes] = {}
        self._selectors: dict[tuple[int, int], Selector] = {}
        self._uses: Counter[Selector] = Counter()
        self._tests: dict[Selector, Test] = {}
        self._variants_max = limits.variants_cached
        self._refused = {
            name: Route([], refusal=CODES[name].number) for name in ("bad-topic", "not-authorized")
        }

    def admit(self, key: int, outlet: Outlet, principal: str) -> None:
        """Somebody may publish and receive from now on."""
        self._outlets[key] = outlet
        self._principals[key] = principal

    def dismiss(self, key: int) -> None:
        """It is gone."""
        if self.table.held(key):
            for subscription in self.table.held(key):
                self._forget_selector(key, subscription)
            self.table.remove_all(key)
            self.changed()
        outlet = self._outlets.pop(key, None)
        if outlet is not None:
            outlet.clear()
        self._principals.pop(key, None)

    def subscribe(
        self, key: int, subscription: int, pattern: str, exact: bool, selector: Selector | None
    ) -> None:
        """Route what matches to it."""
        self.table.add(key, subscription, pattern, exact)
        if selector is not None:
            self._selectors[key, subscription] = selector
            self._uses[selector] += 1
            if selector not in self._tests:
                self._tests[selector] = compile_selector(selector)
        self.changed()

    def unsubscribe(self, key: int, subscription: int) -> None:
        """Route it no more."""
        self.table.remove(key, subscription)
        self._forget_selector(key, subscription)
        self.changed()

    def _forget_selector(self, key: int, subscription: int) -> None:
        selector = self._selectors.pop((key, subscription), None)
        if selector is not None:
            self._uses[selector] -= 1
            if not self._uses[selector]:
                del self._uses[selector], self._tests[selector]

    def rows(self) -> Iterator[dict[str, Any]]:
        """All subscriptions, to look at."""
        for key in self._outlets:
            for id, (pattern, exact) in self.table.held(key).items():
                selector = self._selectors.get((key, id))
                yield {
                    "connection": key,
                    "id": id,
                    "pattern": pattern,
                    "exact": exact,
                    "selector": selector.text if selector is not None else "",
                }

    def changed(self) -> None:
        """Forget the routes that were worked out."""
        self.lane.generation += 1
        self._forget_routes()

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._shared.clear()
        self._encoded.clear()

    def _resolve(self, source: Source, topic: bytes) -> Route:
        """The lane asks for a topic that this source has not used since the last change."""
        text = topic.decode()
        try:
            check_topic(text)
        except LocalError:
            return self._refused["bad-topic"]
        if not self._authorize(self._principals[source.key], "publish", text):
            return self._refused["not-authorized"]
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= self._topics_max:
                self._forget_routes()
            route = self._routes[topic] = self._work_out(text)
        return route

    def _work_out(self, topic: str) -> Route:
        takers = self.table.takers(topic)
        wanted = {
            selector: None
            for key, ids in takers.items()
            for id in ids
            if (selector := self._selectors.get((key, id))) is not None
        }
        if not wanted:
            return self._share(takers)
        return Route([], choice=self._choice(takers, list(wanted)))

    def _choice(self, takers: dict[int, list[int]], selectors: list[Selector]) -> Choice:
        """Each selector is evaluated once for a message, however many subscriptions have it."""

        def build(true: list[int]) -> Route:
            holds = {selectors[index] for index in true}
            left = {
                key: [
                    id
                    for id in ids
                    if (selector := self._selectors.get((key, id))) is None or selector in holds
                ]
                for key, ids in takers.items()
            }
            return self._share({key: ids for key, ids in left.items() if ids})

        tests = [self._tests[selector] for selector in selectors]
        return Choice(tests, self._variants_max, build)

    def _share(self, takers: dict[int, list[int]]) -> Route:
        """The one route of these takers."""
        key = tuple((key, self._encode(tuple(ids))) for key, ids in sorted(takers.items()))
        route = self._shared.get(key)
        if route is None:
            route = Route([(self._outlets[taker], ids) for taker, ids in key])
            self._shared[key] = route
        return route

    def _encode(self, ids: tuple[int, ...]) -> bytes:
        """Field 2 of a transfer header, one object for the same ids: the lane compares by it."""
        encoded = self._encoded.get(ids)
        if encoded is None:
            packed = b"".join(map(write_varint, ids))
            encoded = self._encoded[ids] = b"\x12" + write_varint(len(packed)) + packed
        return encoded
