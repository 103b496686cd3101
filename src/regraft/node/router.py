"""From a topic to a route: the subscription table and the lane, brought together.

A route is worked out once per topic and remembered until subscriptions change. Topics with the same
takers share one route, so that the lane can join their messages to one run.
"""

from __future__ import annotations

from collections.abc import Callable

from regraft.errors import CODES, LocalError
from regraft.kernels.lane import Lane, Outlet, Route, Source
from regraft.limits import Limits
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
            self.table.remove_all(key)
            self.changed()
        outlet = self._outlets.pop(key, None)
        if outlet is not None:
            outlet.clear()
        self._principals.pop(key, None)

    def subscribe(self, key: int, subscription: int, pattern: str, exact: bool) -> None:
        """Route what matches to it."""
        self.table.add(key, subscription, pattern, exact)
        self.changed()

    def unsubscribe(self, key: int, subscription: int) -> None:
        """Route it no more."""
        self.table.remove(key, subscription)
        self.changed()

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
        takers = tuple(
            (key, self._encode(tuple(ids))) for key, ids in sorted(self.table.takers(topic).items())
        )
        route = self._shared.get(takers)
        if route is None:
            route = Route([(self._outlets[key], ids) for key, ids in takers])
            self._shared[takers] = route
        return route

    def _encode(self, ids: tuple[int, ...]) -> bytes:
        """Field 2 of a transfer header, one object for the same ids: the lane compares by it."""
        encoded = self._encoded.get(ids)
        if encoded is None:
            packed = b"".join(map(write_varint, ids))
            encoded = self._encoded[ids] = b"\x12" + write_varint(len(packed)) + packed
        return encoded
