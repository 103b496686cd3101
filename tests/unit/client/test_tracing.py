"""Traces: clients and a real node in memory, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

import regraft
from regraft import LocalError, RegraftError
from regraft.client.traced import explain_row
from regraft.limits import Limits
from regraft.model.reasons import REASONS, reason_text
from regraft.testing import Bus, virtual_time

RULES = """
[[route]]
types = ["ASKED"]
to = "SEARCH"
"""


def rows(report: dict[str, Any], name: str = "takers") -> dict[Any, tuple[bool, str]]:
    return {
        row.get("client") or row.get("name"): (row["gets"], row["reason"]) for row in report[name]
    }


@virtual_time
async def test_who_would_get_a_message_and_nobody_does() -> None:
    async with Bus() as bus:
        asker, one, other = [await bus.connect(client_id=name) for name in ("me", "one", "other")]
        cheap = await one.subscribe("orders/#", where="price < 10")
        dear = await other.subscribe("orders/eu", where="price >= 10")
        found = await asker.who("orders/eu", b"x", attributes={"price": 12})
        assert found.complete and not found.missing and len(found.reports) == 1
        (report,) = found.reports
        assert report["reached"] and not report["stopped"] and report["links"] == []
        assert rows(report) == {"other": (True, "delivered")}
        assert [row["client"] for row in found.receivers] == ["other"]
        assert found.receivers[0]["selector"] == "price >= 10"
        assert (found.receivers[0]["pattern"], found.receivers[0]["subscription"]) == (
            "orders/eu",
            dear.id,
        )
        assert [row["client"] for row in (await asker.who("orders/us")).receivers] == []
        await asker.publish("orders/eu", attributes={"price": 1}, confirm=True)
        assert (await cheap.next(timeout=1)).attributes == {"price": 1}
        assert dear.pending() == 0


@virtual_time
async def test_a_message_that_is_followed_is_published_behind_earlier_ones() -> None:
    async with Bus() as bus:
        asker, one = await bus.connect(), await bus.connect(client_id="one")
        heard = await one.subscribe("a")
        for n in range(3):
            await asker.publish("a", str(n))
        found = await asker.trace("a", "marked")
        await asker.publish("a", "after")
        texts = [(await heard.next(timeout=1)).text() for _ in range(5)]
        assert texts == ["0", "1", "2", "marked", "after"]
        assert [row["client"] for row in found.receivers] == ["one"]
        held = bus.snapshot()
        assert held["questions_open"] == held["question_branches"] == 0


@virtual_time
async def test_why_names_the_parts_of_a_selector_that_are_not_true() -> None:
    async with Bus() as bus:
        asker, one = await bus.connect(), await bus.connect(client_id="one")
        where = "price > 10 AND symbol = 'ACME' AND (size < 5 OR urgent)"
        await one.subscribe("orders/#", where=where.replace("urgent", "urgent = TRUE"))
        given = {"price": "12", "size": 7}
        found = await asker.why("orders/eu", client="one", attributes=given)
        assert found.found and not found.gets
        (row,) = found.subject
        assert row["reason"] == "selector-false"
        parts = {one["part"]: (one["result"], one["values"]) for one in row["culprits"]}
        assert parts == {
            "price > 10": ("false", {"price": "'12' (string)"}),
            "symbol = 'ACME'": ("unknown", {"symbol": "missing (attribute)"}),
            "size < 5": ("false", {"size": "7 (number)"}),
            "urgent = TRUE": ("unknown", {"urgent": "missing (attribute)"}),
        }
        text = "\n".join(found.reasons())
        assert "does not get it: its selector is false" in text
        assert "price > 10 is false: price is '12' (string)" in text
        good = {"price": 12, "symbol": "ACME", "size": 1}
        assert (await asker.why("orders/eu", client="one", attributes=good)).gets
        only_missing = await asker.why("orders/eu", client="one", attributes={**good, "size": 9})
        assert only_missing.subject[0]["reason"] == "selector-unknown"


@virtual_time
@pytest.mark.parametrize(
    ("pattern", "exact", "text"),
    [
        ("orders/us", False, "level 2 is 'eu', and the pattern has 'us'"),
        ("orders/eu/x", False, "the topic ends before level 3 of the pattern, 'x'"),
        ("orders", True, "the pattern is exact, and the topic goes on with 'eu'"),
    ],
)
async def test_why_says_at_which_level_a_pattern_fails(
    pattern: str, exact: bool, text: str
) -> None:
    async with Bus() as bus:
        asker = await bus.connect(client_id="me")
        await asker.subscribe(pattern, exact=exact)
        found = await asker.why("orders/eu")
        assert [(row["reason"], row["text"]) for row in found.subject] == [("pattern", text)]
        assert text in found.reasons()[0]


@virtual_time
async def test_contexts_decide_and_are_explained() -> None:
    async with Bus() as bus:
        asker, one = await bus.connect(), await bus.connect(client_id="one")
        heard = await one.subscribe("offers")
        await one.set_context({"floor": 2})
        found = await asker.who("offers", where="ctx.floor = 1")
        assert rows(found.reports[0]) == {"one": (False, "context")}
        why = await asker.why("offers", client="one", where="ctx.floor = 1")
        assert why.subject[0]["reason"] == "context"
        assert why.subject[0]["culprits"][0]["values"] == {"ctx.floor": "2 (number)"}
        assert (await asker.who("offers", where="ctx.floor = 2")).receivers
        await asker.trace("offers", "no", where="ctx.floor = 1")
        await asker.trace("offers", "yes", where="ctx.floor = 2")
        assert (await heard.next(timeout=1)).text() == "yes"
        with pytest.raises(LocalError, match="selector"):
            await asker.who("offers", where="ctx.floor =")


@virtual_time
async def test_mailboxes_queues_and_streams_take_what_is_persistent() -> None:
    async with Bus(streams={"all": "jobs"}) as bus:
        asker, one = await bus.connect(), await bus.connect(client_id="one")
        await one.subscribe_durably("mine", "jobs")
        await asker.create_queue("work", "jobs", where="n > 3")
        found = await asker.who("jobs", attributes={"n": 5}, persistent=True)
        kept = {"mine": (True, "kept"), "work": (True, "kept"), "all": (True, "kept")}
        assert rows(found.reports[0]) == kept | {"one": (False, "by-mailbox")}
        assert sorted(row["name"] for row in found.receivers) == ["all", "mine", "work"]
        found = await asker.who("jobs", attributes={"n": 5})
        assert rows(found.reports[0]) == {
            "one": (True, "read-now"),
            **dict.fromkeys(("mine", "work", "all"), (False, "not-persistent")),
        }
        why = await asker.why("jobs", durable="work", attributes={"n": 1}, persistent=True)
        assert why.subject[0]["reason"] == "selector-false"
        assert (await asker.why("jobs", durable="work", attributes={"n": 1})).gets is False
        assert (await asker.why("jobs", client="one")).subject[0]["reason"] == "read-now"
        none = await asker.why("jobs", durable="nothing")
        assert (none.found, none.reasons()) == (
            False,
            ["mailbox nothing has no subscription anywhere"],
        )
        traced = await asker.trace("jobs", "x", attributes={"n": 9}, persistent=True)
        assert sorted(row["name"] for row in traced.receivers) == ["all", "mine", "work"]
        assert (await asker.show_queue("work"))["waiting"] == 1


@virtual_time
async def test_what_stops_a_message_is_said() -> None:
    async with Bus(journal=False) as bus:
        asker, one = await bus.connect(), await bus.connect(client_id="one")
        await one.subscribe("a")

        async def stops(**more: Any) -> list[str]:
            found = await asker.who("a", **more)
            assert not found.receivers
            return [stop["reason"] for stop in found.reports[0]["stopped"]]

        assert await stops(expiration_us=1) == ["expired"]
        assert await stops(persistent=True) == ["no-journal"]
        assert await stops(delay=5) == ["no-journal"]
        why = await asker.why("a", client="one", expiration_us=1)
        assert not why.gets
        assert any("it has expired" in line for line in why.reasons())
        found = await asker.trace("a", "x", expiration_us=1)
        assert [stop["reason"] for stop in found.reports[0]["stopped"]] == ["expired"]


@virtual_time
async def test_full_mailboxes_and_delays_are_said() -> None:
    async with Bus() as bus:
        asker = await bus.connect()
        await asker.create_queue("small", "a", quota_messages=1)
        await asker.publish("a", persistent=True, confirm=True)
        found = await asker.who("a", persistent=True)
        assert rows(found.reports[0]) == {"small": (False, "mailbox-full")}
        why = await asker.why("a", durable="small", persistent=True)
        assert why.subject[0]["reason"] == "mailbox-full"
        found = await asker.who("a", delay=60)
        assert [stop["reason"] for stop in found.reports[0]["stopped"]] == ["delayed"]


@virtual_time
async def test_groups_share_and_rules_are_named() -> None:
    async with Bus() as bus:
        asker = await bus.connect()
        members = [await bus.connect(client_id=name) for name in ("m1", "m2")]
        shared = [await one.subscribe("$share/team/jobs") for one in members]
        found = await asker.who("jobs")
        (row,) = found.reports[0]["takers"]
        assert (row["reason"], row["members"]) == ("one-of", ["m1", "m2"])
        assert row["name"] == "$share/team/jobs"
        traced = await asker.trace("jobs", "x")
        picked = [r["client"] for r in traced.reports[0]["takers"] if r["reason"] == "picked"]
        got = [one.pending() for one in shared]
        assert [["m1", "m2"][got.index(1)]] == picked
        why = await asker.why("jobs", client="m1")
        assert why.subject[0]["reason"] == "member"
        assert [r["reason"] for r in (await asker.who("$type/NONE")).reports[0]["takers"]] == [
            "no-rule"
        ]
        with pytest.raises(LocalError, match="who"):
            await asker.trace("$type/NONE")


@virtual_time
async def test_a_slow_subscriber_is_said_to_be_so() -> None:
    async with Bus() as bus:
        asker = await bus.connect()
        slow = await bus.connect(client_id="slow", queue_messages=2)
        await slow.subscribe("a")
        for _ in range(20):
            await asker.publish("a", b"x" * 1000)
        found = await asker.who("a")
        reason = found.receivers[0]["reason"] if found.receivers else ""
        assert reason in ("delivered", "waits")


@virtual_time
async def test_what_is_too_much_is_refused_or_left_out_and_counted() -> None:
    async with Bus(limits=Limits(trace_bytes=2000, questions_per_session=1)) as bus:
        asker = await bus.connect()
        for n in range(40):
            one = await bus.connect(client_id=f"client-{n}")
            await one.subscribe("a")
        found = await asker.who("a")
        (report,) = found.reports
        assert 0 < len(report["takers"]) < 40
        assert len(report["takers"]) + report["left_out"] == 40
        with pytest.raises(LocalError, match="control_frame_bytes"):
            await asker.who("a", b"x" * 70_000)
        with pytest.raises(LocalError, match="timeout"):
            await asker.who("a", timeout=0)


@virtual_time
async def test_how_a_subscription_travelled_on_one_node() -> None:
    async with Bus() as bus:
        asker = await bus.connect(client_id="me")
        await asker.subscribe("a/#", where="n > 1")
        await asker.subscribe_durably("box", "b")
        found = await asker.trace_subscription()
        assert [(one.row["kind"], one.row["pattern"]) for one in found] == [
            ("mailbox", "b"),
            ("subscription", "a"),
        ]
        assert all(one.complete and one.home for one in found)
        assert await asker.trace_subscription(client="nobody") == []


@virtual_time
async def test_who_may_not_trace_is_told_so() -> None:
    async with Bus() as bus:
        asker = await bus.connect()
        bus._node().node._tracing._authorize = lambda who, action, what: (
            (action, what)
            != (
                "inspect",
                "trace",
            )
        )
        with pytest.raises(RegraftError, match="may not trace"):
            await asker.who("a")


def test_reasons_have_a_text_and_unknown_ones_their_name() -> None:
    assert reason_text("forwarded") == REASONS["forwarded"]
    assert reason_text("of-tomorrow") == "of-tomorrow"


class Multiple:
    """A filter of an application: n is a multiple of something."""

    def __init__(self, of: int) -> None:
        self.of = of

    def matches(self, message: Any) -> bool:
        return bool(message.attributes.get("n", 0) % self.of == 0)

    def covers(self, other: Multiple) -> bool:
        return other.of % self.of == 0

    def encode(self) -> bytes:
        return bytes([self.of])

    @classmethod
    def decode(cls, data: bytes) -> Multiple:
        return cls(data[0])


regraft.filter("multiple-for-traces")(Multiple)


@virtual_time
async def test_a_filter_of_an_application_decides_and_is_named() -> None:
    async with Bus() as bus:
        asker, one = await bus.connect(), await bus.connect(client_id="one")
        await one.subscribe("a", filter=Multiple(2))
        found = await asker.who("a", attributes={"n": 1})
        assert rows(found.reports[0]) == {"one": (False, "own-filter")}
        why = await asker.why("a", client="one", attributes={"n": 1})
        assert (why.gets, why.subject[0]["reason"]) == (False, "own-filter")
        assert (await asker.why("a", client="one", attributes={"n": 2})).gets
        assert [r["client"] for r in (await asker.trace("a", attributes={"n": 2})).receivers] == [
            "one"
        ]
        (travelled,) = await asker.trace_subscription(client="one")
        assert travelled.row["filter"] == "multiple-for-traces"


def test_nothing_is_said_twice_of_who_gets_it() -> None:
    row = {"kind": "subscription", "subscription": 1, "at": "n", "pattern": "a", "gets": True}
    assert list(explain_row({**row, "reason": "delivered"})) == [
        "subscription 1 to a at node n gets it"
    ]
    slow = list(explain_row({**row, "reason": "waits"}))
    assert slow == [
        "subscription 1 to a at node n gets it: it is slow: this waits behind other messages for it"
    ]
