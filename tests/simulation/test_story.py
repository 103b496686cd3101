"""Random stories of one node and its guests, by seed; and checkers that are known to see."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from regraft.kernels.plan import Plan
from regraft.node.router import Router
from regraft.session.backlog import Backlog
from regraft.session.session import Delivery
from regraft.simulate.story import Story, complaints

SEEDS = range(60)


def tell(seed: int) -> Story:
    story = Story(seed)
    story.tell()
    return story


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_wrong_with_the_story(seed: int) -> None:
    assert list(complaints(tell(seed))) == []


def test_the_same_seed_tells_the_same_story() -> None:
    first, second, other = tell(7), tell(7), tell(8)
    assert first.trace_hash == second.trace_hash
    assert first.trace_hash != other.trace_hash


def test_the_stories_are_eventful() -> None:
    stories = [tell(seed) for seed in range(12)]
    assert sum(story.counters["dropped"] for story in stories) > 0
    assert any(story.left for story in stories)
    assert sum(len(guest.seen) for story in stories for guest in story.guests) > 2000


def forget_a_message(original: Callable[..., Any]) -> Callable[..., Any]:
    def put(self: Backlog, ids: bytes, count: int, *rest: Any) -> None:
        if count > 1:
            original(self, ids, count, *rest)

    return put


def deliver_twice(original: Callable[..., Any]) -> Callable[..., Any]:
    def put(self: Backlog, *run: Any) -> None:
        original(self, *run)
        original(self, *run)

    return put


def drop_uncounted(original: Callable[..., Any]) -> Callable[..., Any]:
    def dropped(self: Delivery, messages: int, size: int) -> None:
        return None

    return dropped


def ignore_a_subscription(original: Callable[..., Any]) -> Callable[..., Any]:
    def subscribe(self: Router, key: int, id: int, *what: Any, own: Any) -> None:
        if self.held(key):
            what = (*what[:-1], Plan("FALSE", []))
        original(self, key, id, *what)

    return subscribe


def keep_after_unsubscribing(original: Callable[..., Any]) -> Callable[..., Any]:
    def unsubscribe(self: Router, key: int, id: int) -> None:
        self._held[key].pop(id)

    return unsubscribe


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (Backlog, "put", forget_a_message),
        (Backlog, "put", deliver_twice),
        (Delivery, "_dropped", drop_uncounted),
        (Router, "subscribe", ignore_a_subscription),
        (Router, "unsubscribe", keep_after_unsubscribing),
    ],
)
def test_a_planted_bug_is_seen(
    owner: type[Any],
    name: str,
    bug: Callable[[Callable[..., Any]], Callable[..., Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, bug(getattr(owner, name)))
    seen = False
    for seed in SEEDS:
        try:
            seen = bool(list(complaints(tell(seed))))
        except (AssertionError, KeyError, LookupError):
            seen = True  # the node itself noticed
        if seen:
            break
    assert seen


def test_interpreted_kernels_tell_the_same_story() -> None:
    """Whole nodes, byte for byte: what compiled kernels did, their sources do."""

    def told(kernels: str) -> str:
        environment = {**os.environ, "REGRAFT_KERNELS": kernels, "REGRAFT_REQUIRE_COMPILED": ""}
        command = [sys.executable, "-m", "regraft.simulate", "0", "1"]
        return subprocess.check_output(command, env=environment, text=True)

    assert told("interpreted") == told("")
