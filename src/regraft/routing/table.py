"""The subscription table: which takers want a topic, and by which of their subscriptions."""

from __future__ import annotations

from regraft.routing.patterns import PatternTree


class SubscriptionTable:
    """Subscriptions of all takers. A taker is a number; so is each of its subscriptions."""

    def __init__(self) -> None:
        self._tree: PatternTree[tuple[int, int]] = PatternTree()
        self._held: dict[int, dict[int, tuple[str, bool]]] = {}
        self.size = 0

    def add(self, taker: int, subscription: int, pattern: str, exact: bool) -> None:
        """Add a subscription that the taker does not have yet."""
        held = self._held.setdefault(taker, {})
        assert subscription not in held, (taker, subscription)
        held[subscription] = (pattern, exact)
        self._tree.add(pattern, exact, (taker, subscription))
        self.size += 1

    def remove(self, taker: int, subscription: int) -> None:
        """Remove one that it has."""
        held = self._held[taker]
        pattern, exact = held.pop(subscription)
        if not held:
            del self._held[taker]
        self._tree.remove(pattern, exact, (taker, subscription))
        self.size -= 1

    def remove_all(self, taker: int) -> None:
        """Forget a taker."""
        for subscription in list(self._held.get(taker, ())):
            self.remove(taker, subscription)

    def held(self, taker: int) -> dict[int, tuple[str, bool]]:
        """The subscriptions of a taker: pattern and exactness by id."""
        return self._held.get(taker, {})

    def takers(self, topic: str) -> dict[int, list[int]]:
        """Who wants it, each with its subscriptions in ascending order."""
        found: dict[int, list[int]] = {}
        for taker, subscription in self._tree.find(topic):
            found.setdefault(taker, []).append(subscription)
        for subscriptions in found.values():
            subscriptions.sort()
        return found
