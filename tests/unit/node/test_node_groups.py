"""What a node does with peer types, rules, addresses, and messages that find nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Client, Delivered, World, publication

from regraft.model.message import Message
from regraft.model.rules import DELIVERY_ERROR, REQUEST_RECEIVED, Route, encode_routes
from regraft.wire import native, peers

RULES = """
[peers.SEARCH]
[peers.CACHE]
[peers.DB]
[types.ASKED]
routes = [{ to = "SEARCH" }]
[types.STORED]
routes = [
    { to = "DB", original = true },
    { to = "CACHE", whom = "all", missing = "ignore" },
]
[types.TOLD]
routes = [{ to = "CACHE", whom = "all" }]
[types.QUIET]
routes = [{ to = "DB", report = false }]
"""
TO_ALL = 1 << 30


def world(**limits: int) -> World:
    made = World(**limits)
    made.node.load_rules(RULES, "rules")
    return made


def peer(world: World, name: str, kind: str = "", **hello: Any) -> Client:
    """A client that can be addressed, and is of a type."""
    client = world.connect(name, **hello)
    client.send(native.Subscribe(1, f"$peer/{name}", exact=True))
    if kind:
        client.send(native.Subscribe(2, f"$group/{kind}"))
    assert all(isinstance(item, native.Subscribed) for item in client.take())
    return client


def typed(type: str, body: object = "", **more: Any) -> Message:
    return publication(str(body), f"$type/{type}", **{"sender": "web", "id": 5, **more})


def reply(to: str, references: int, **more: Any) -> Message:
    return publication("r", "$reply", to=to, references=references, **more)


def got(client: Client) -> list[str]:
    """The bodies that came since the last call."""
    return [item.text for item in client.take() if isinstance(item, Delivered)]


def reports(client: Client) -> list[Message]:
    found = [
        native.decode(7, item.frame[12:]) for item in client.take() if isinstance(item, Delivered)
    ]
    assert all(message.type == DELIVERY_ERROR for message in found)
    return found


def test_any_goes_to_one_and_all_to_each() -> None:
    bus = world()
    web = peer(bus, "web")
    caches = [peer(bus, f"c{k}", "CACHE") for k in range(3)]
    stores = [peer(bus, f"d{k}", "DB") for k in range(2)]
    web.send(*(typed("STORED", k) for k in range(6)))
    assert all(got(cache) == list("012345") for cache in caches)
    shares = [got(store) for store in stores]
    assert sorted(shares[0] + shares[1]) == list("012345")
    assert [len(share) for share in shares] == [3, 3]
    bus.check_sums()


def test_deliveries_say_by_which_kind_of_rule_they_came() -> None:
    bus = world()
    store, cache = peer(bus, "d", "DB"), peer(bus, "c", "CACHE")
    peer(bus, "web").send(typed("STORED"))
    assert [item.subscriptions for item in store.take()] == [(2,)]
    assert [item.subscriptions for item in cache.take()] == [(2 | TO_ALL,)]


def test_who_has_less_in_its_hands_gets_the_next() -> None:
    bus = world()
    web = peer(bus, "web")
    slow, quick = peer(bus, "slow", "SEARCH"), peer(bus, "quick", "SEARCH")
    for k in range(8):
        web.send(typed("ASKED", k, id=k + 1))
        if got(quick):
            quick.send(reply("web", k + 1))
    # The first to one of them, then the slow one has one in its hands, and gets no more.
    assert len(got(slow)) == 1
    assert len(got(web)) == 7


def test_only_answers_free_a_member() -> None:
    bus = world()
    web = peer(bus, "web")
    member = peer(bus, "s", "SEARCH")
    web.send(typed("ASKED", id=1), typed("ASKED", id=2), typed("ASKED", id=3))

    def in_flight() -> int:
        (row,) = [row for row in bus.node.report("services", 9)["rows"] if row["client"] == "s"]
        assert isinstance(row["in_flight"], int)
        return row["in_flight"]

    assert in_flight() == 3
    member.send(reply("web", 1, type=REQUEST_RECEIVED), reply("web", 9, type=1))
    assert in_flight() == 3
    member.send(reply("web", 1))
    assert in_flight() == 2
    member.send(native.Finished(1))
    assert in_flight() == 1
    member.send(native.Finished(7))
    assert in_flight() == 0


def test_nobody_there_is_reported_as_the_rule_says() -> None:
    bus = world()
    web = peer(bus, "web")
    message = typed("STORED", "original", workflow=b"task")
    web.send(message)
    (report,) = reports(web)
    assert report.references == 5
    assert report.workflow == b"task"
    assert report.attributes == {"reason": "there is none", "type": "STORED", "peer": "DB"}
    assert native.decode(7, report.body).body == b"original"
    web.send(typed("ASKED", "x"))
    (report,) = reports(web)
    assert report.body == b""
    web.send(typed("QUIET"))
    assert reports(web) == []
    web.send(typed("QUIET", report_delivery_error=True, include_original=True))
    (report,) = reports(web)
    assert report.body
    assert bus.counters["undelivered"] == {"nobody": 4}


def test_nobody_among_all_is_reported_unless_it_is_fine() -> None:
    bus = world()
    web = peer(bus, "web")
    web.send(typed("TOLD"))
    (report,) = reports(web)
    assert report.attributes["peer"] == "CACHE"
    cache = peer(bus, "c", "CACHE")
    web.send(typed("TOLD"))
    assert reports(web) == [] and got(cache) == [""]


def test_a_type_without_a_rule_is_reported() -> None:
    bus = world()
    web = peer(bus, "web")
    web.send(typed("NEVER"))
    (report,) = reports(web)
    assert report.attributes["reason"] == "there is no rule for NEVER"
    monitor = bus.subscriber("$type/#")
    web.send(typed("NEVER"))
    assert reports(web) == [] and got(monitor) == [""]


def test_full_members_are_passed_over_and_then_it_is_reported() -> None:
    bus = world()
    web = peer(bus, "web")
    small = peer(bus, "small", "SEARCH", queue_messages=2)
    web.send(*(typed("ASKED", k, id=k + 1) for k in range(4)))
    assert got(small) == ["0", "1"]
    found = reports(web)
    assert [report.references for report in found] == [3, 4]
    assert "queues are full" in str(found[0].attributes["reason"])
    assert bus.counters["undelivered"] == {"full": 2}
    large = peer(bus, "large", "SEARCH")
    web.send(*(typed("ASKED", k) for k in range(3)))
    assert got(large) == ["0", "1", "2"] and got(small) == []


def test_an_address_comes_before_everything_else() -> None:
    bus = world()
    web, other = peer(bus, "web"), peer(bus, "other")
    member = peer(bus, "s", "SEARCH")
    rules = encode_routes((Route("SEARCH"),))
    web.send(typed("ASKED", "direct", to="other", override_rules=rules))
    assert got(other) == ["direct"] and got(member) == []
    web.send(typed("ASKED", to="nobody"))
    assert reports(web) == []
    web.send(typed("ASKED", to="nobody", report_delivery_error=True))
    assert len(reports(web)) == 1


def test_rules_of_a_message_come_before_the_table() -> None:
    bus = world()
    web = peer(bus, "web")
    member, cache = peer(bus, "s", "SEARCH"), peer(bus, "c", "CACHE")
    routes = (Route("CACHE", all=True), Route("SEARCH"), Route("MAIL", original=True))
    web.send(typed("ASKED", "own", override_rules=encode_routes(routes)))
    assert got(member) == ["own"] and got(cache) == ["own"]
    (report,) = reports(web)
    assert report.attributes["peer"] == "MAIL" and report.body
    web.send(typed("ASKED", "x", override_rules=b"\xff"))
    (error,) = web.take()
    assert error.name == "bad-message" and got(member) == []
    late = peer(bus, "m", "MAIL")
    web.send(typed("ASKED", "now", override_rules=encode_routes(routes)))
    assert got(late) == ["now"]


def test_a_search_reaches_all_of_the_first_route() -> None:
    bus = world()
    web = peer(bus, "web")
    search = publication(
        "", "$search/STORED", sender="web", id=7, type=3, report_delivery_error=True
    )
    peer(bus, "c", "CACHE")
    web.send(search)
    assert len(reports(web)) == 1
    stores = [peer(bus, f"d{k}", "DB") for k in range(2)]
    web.send(search)
    assert reports(web) == [] and [len(got(store)) for store in stores] == [1, 1]


def test_only_its_owner_has_an_address() -> None:
    bus = world()
    thief = bus.connect("thief")
    thief.send(native.Subscribe(1, "$peer/web"), native.Subscribe(2, "$group/a b"))
    names = [error.name for error in thief.take()]
    assert names == ["not-authorized", "bad-pattern"]
    odd = bus.connect("a/b")
    odd.send(native.Subscribe(1, "$group/SEARCH"))
    assert "could not be addressed" in odd.take()[0].text


def test_a_shared_subscription_has_each_message_once() -> None:
    bus = World()
    first, second = bus.connect("a"), bus.connect("b")
    for client in (first, second):
        client.send(native.Subscribe(3, "$share/workers/orders/#", "n > 1"))
        client.take()
    everybody = bus.subscriber("orders")
    bus.connect().send(*(publication(k, "orders/eu", attributes={"n": k}) for k in range(8)))
    shares = got(first), got(second)
    assert sorted(shares[0] + shares[1]) == list("234567")
    assert all(len(share) == 3 for share in shares)
    assert len(got(everybody)) == 8
    first.send(native.Unsubscribe(3))
    bus.connect().send(publication("last", "orders", attributes={"n": 9}))
    assert got(second) == ["last"]
    second.leave()
    bus.connect().send(publication("nobody", "orders", attributes={"n": 9}))
    assert bus.counters["undelivered"] == {}


def test_a_member_that_leaves_gets_nothing_more() -> None:
    bus = world()
    web = peer(bus, "web")
    one, two = peer(bus, "one", "SEARCH"), peer(bus, "two", "SEARCH")
    one.leave()
    web.send(*(typed("ASKED", k) for k in range(3)))
    assert got(two) == ["0", "1", "2"]
    two.send(native.Unsubscribe(2))
    assert native.Unsubscribed(2) in two.take()
    web.send(typed("ASKED"))
    assert len(reports(web)) == 1 and got(two) == []
    for client in (web, two):
        client.leave()
    bus.node.load_rules("", "rules")
    bus.check_empty()


def command(client: Client, what: str, **arguments: Any) -> Any:
    client.send(peers.Command(1, what, json.dumps(arguments).encode()))
    (answer,) = client.take()
    return json.loads(answer.json) if isinstance(answer, peers.Done) else answer


def test_rules_are_replaced_as_a_whole_or_not_at_all() -> None:
    bus = world()
    web, member, cache = peer(bus, "web"), peer(bus, "s", "SEARCH"), peer(bus, "c", "CACHE")
    other = RULES.replace('routes = [{ to = "SEARCH" }]', 'routes = [{ to = "CACHE" }]')
    error = command(
        web, "rules-load", text=other.replace("[peers.DB]", "[peers.DD]"), name="x.toml"
    )
    assert error.name == "bad-configuration" and error.text.startswith("x.toml:8: ")
    web.send(typed("ASKED", 1))
    assert got(member) == ["1"] and got(cache) == []
    assert command(web, "rules-load", text=other)["types"] == 4
    web.send(typed("ASKED", 2))
    assert got(member) == [] and got(cache) == ["2"]
    assert command(web, "rules-show")["text"] == other
    assert "needs a text" in command(web, "rules-load", text=3).text


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_within_one_read_rules_change_between_two_messages(cut: int) -> None:
    bus = world()
    web, member, cache = peer(bus, "web"), peer(bus, "s", "SEARCH"), peer(bus, "c", "CACHE")
    other = RULES.replace('routes = [{ to = "SEARCH" }]', 'routes = [{ to = "CACHE" }]')
    load = peers.Command(1, "rules-load", json.dumps({"text": other}).encode())
    parts = [typed("ASKED", k) for k in range(40)]
    web.send(*parts[:cut], load, *parts[cut:])
    assert got(member) == [str(k) for k in range(cut)]
    assert got(cache) == [str(k) for k in range(cut, 40)]


def test_persistent_messages_without_a_journal_are_refused_as_ever() -> None:
    bus = world()
    web = peer(bus, "web")
    member = peer(bus, "s", "SEARCH")
    web.send(native.frame(7, native.encode(typed("ASKED"))[12:], 1))
    assert [error.name for error in web.take()] == ["not-supported"]
    assert got(member) == []


def test_a_message_without_a_member_here_goes_to_one_that_a_neighbour_has() -> None:
    bus = world()
    web = peer(bus, "web")
    # What a neighbour would say, without one: a member elsewhere, and the way to it.
    bus.node._groups._member_elsewhere(True, "$member/SEARCH/far")
    far = peer(bus, "far")
    empty = native.frame(7, native.encode(typed("ASKED", "empty"))[12:] + b"\x1a\x00")
    web.send(typed("ASKED", "x", unknown=b"\xf8\x01\x07"), empty)
    assert got(far) == ["x", "empty"]
    assert bus.counters["sent_on"] == 2 and reports(web) == []
    near = peer(bus, "near", "SEARCH")
    web.send(typed("ASKED", "y"))
    assert got(near) == ["y"] and got(far) == []
    near.leave()
    far.leave()
    web.send(typed("ASKED", "z"))
    assert len(reports(web)) == 1
    bus.node._groups._member_elsewhere(False, "$member/SEARCH/far")
    assert not bus.node._groups._kinds["SEARCH"].elsewhere
