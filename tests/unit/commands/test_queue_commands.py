"""`regraft queue`, `topic`, `dlq`, `delayed` and `pub`, with a node that only answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from fake_nodes import FakeNode, FakeNodes

from regraft import LocalError, Timestamp, cli
from regraft.commands import common
from regraft.commands.common import duration, parse_moment, size
from regraft.model.message import DeliveryMode, Message
from regraft.wire import native

Regraft = Callable[..., Result]

QUEUE = {
    "name": "orders",
    "topic": "shop/orders",
    "where": "",
    "exact": False,
    "options": {"shared": True, "lease_ms": 5000},
    "owner": "",
    "next": 1235,
    "floor": 7,
    "waiting": 1200,
    "held": 12,
    "returned": 3,
    "members": 2,
    "full": False,
    "dead": 1,
    "oldest_us": 1_800_000_000_000_000,
}
OLDEST = "2027-01-15T08:00:00.000Z"
MEMBERS = [
    {"client": "a", "subscription": 1, "held": 10, "in_flight": 100, "active": True},
    {"client": "b", "subscription": 4, "held": 2, "in_flight": 100, "active": True},
]
TOPIC = {
    "name": "prices",
    "topic": "market/#",
    "exact": False,
    "retain": True,
    "keep_s": 60,
    "keep_bytes": 0,
    "persistent": False,
    "quota_messages": 0,
    "quota_bytes": 0,
    "holder": "",
    "next": 7,
    "bytes": 4321,
}


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNodes("harbour") as nodes:
        yield nodes["harbour"]


@pytest.fixture
def regraft(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Regraft:
    for variable in [name for name in os.environ if name.startswith("REGRAFT_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("REGRAFT_URL", node.address)

    def call(*arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli.group, arguments, prog_name="regraft", input=input)

    return call


class Mailbox:
    """What a node answers who has messages to be browsed or taken."""

    def __init__(self, *messages: Message, first: int = 1) -> None:
        self.messages = messages
        self.first = first
        self.got: list[Any] = []

    def __call__(self, message: Any) -> list[Any]:
        self.got.append(message)
        match message:
            case native.Subscribe():
                run = native.Transfer(len(self.messages), (message.id,), first_sequence=self.first)
                answer = [native.Subscribed(message.id)]
                answer += [run, *self.messages] if self.messages else []
                return [*answer, native.Unsubscribed(message.id)] if message.browse else answer
            case native.Unsubscribe():
                return [native.Unsubscribed(message.id)]
            case native.Settle(token=token) if token:
                return [native.Settled(message.subscription, token)]
            case native.Heartbeat(token=token) if token:
                return [native.Heartbeat(token, True)]
            case Message():
                if message.delivery_mode:  # all are, so that this is its ordinal, too
                    return [native.Confirmed(message.sequence or 0, 1, 2)]
        return []

    def all(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.got if isinstance(one, kind)]


def order(text: str, **more: Any) -> Message:
    return Message("shop/orders", text.encode(), **more)


# ----------------------------------------------------------------------------------- queue


def test_queue_create(node: FakeNode, regraft: Regraft) -> None:
    node.obey = lambda what, arguments: {"queue": QUEUE}
    result = regraft(
        *("queue", "create", "orders", "--topic", "shop/orders", "-w", "a > 1", "--exact"),
        *("--lease", "5s", "--retry", "500ms", "--retry-max", "2m", "--max-deliveries", "5"),
        *("--dead-letter", "dead/here", "--dead-expired", "--quota-messages", "7"),
        *("--quota-bytes", "1MiB", "--in-flight", "10"),
    )
    assert (result.exit_code, result.output) == (0, "orders takes shop/orders\n")
    options = {
        "shared": True,
        "lease_ms": 5000,
        "retry_ms": 500,
        "retry_max_ms": 120_000,
        "max_deliveries": 5,
        "dead_letter": "dead/here",
        "dead_expired": True,
        "quota_messages": 7,
        "quota_bytes": 1 << 20,
        "in_flight": 10,
    }
    asked = {"name": "orders", "topic": "shop/orders", "where": "a > 1", "exact": True}
    assert node.commands == [("queue-create", {**asked, "options": options})]
    for flag, told in (
        ("--single", {"shared": False}),
        ("--exclusive", {"exclusive": True}),
        ("--order-by=customer", {"order_by": "customer"}),
    ):
        assert regraft("queue", "create", "orders", flag, "--json").exit_code == 0
        assert node.commands[-1][1]["options"] == told
    assert json.loads(regraft("queue", "create", "orders", "--json").stdout) == QUEUE


def test_queue_change(node: FakeNode, regraft: Regraft) -> None:
    node.obey = lambda what, arguments: {"queue": QUEUE}
    result = regraft("queue", "change", "orders", "--lease", "0", "--drop-expired")
    assert result.exit_code == 0
    assert "options   shared yes, lease_ms 5000" in result.stdout or "lease_ms" in result.stdout
    changed = {"lease_ms": 0, "dead_expired": False}
    assert node.commands == [("queue-change", {"name": "orders", "options": changed})]
    result = regraft("queue", "change", "orders")
    assert result.exit_code == 2 and "say what to change" in result.stderr
    result = regraft("queue", "change", "orders", "--lease", "soon")
    assert result.exit_code == 2 and "'soon' is no time" in result.stderr


def test_queue_list_and_show(node: FakeNode, regraft: Regraft) -> None:
    node.obey = lambda what, arguments: {"queues": [QUEUE, {**QUEUE, "name": "b", "full": True}]}
    assert regraft("queue", "list").stdout.splitlines() == [
        "name    topic        waiting  held  returned  members  dead  full  oldest",
        f"orders  shop/orders  1,200    12    3         2        1     no    {OLDEST}",
        f"b       shop/orders  1,200    12    3         2        1     yes   {OLDEST}",
    ]
    assert json.loads(regraft("queue", "list", "--json").stdout)[0] == QUEUE
    node.obey = lambda what, arguments: {"queues": []}
    result = regraft("queue", "list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "there are no queues\n")
    node.obey = lambda what, arguments: {"queue": QUEUE, "members": MEMBERS}
    lines = regraft("queue", "show", "orders").stdout.splitlines()
    assert lines[0] == "name      orders"
    assert "waiting   1,200" in lines
    assert lines[-3:] == [
        "client  subscription  held  in_flight  active",
        "a       1             10    100        yes",
        "b       4             2     100        yes",
    ]
    data = json.loads(regraft("queue", "show", "orders", "--json").stdout)
    assert data["member_rows"] == MEMBERS and data["waiting"] == 1200


def test_what_the_node_refuses_is_said_in_one_line(node: FakeNode, regraft: Regraft) -> None:
    def refuse(what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        raise LocalError("unknown-mailbox", "there is no mailbox 'orders'")

    node.obey = refuse
    for command in ("show", "purge", "remove", "rename", "seek", "send"):
        more = {"rename": ["to"], "seek": ["start"], "send": ["body"]}.get(command, [])
        result = regraft("queue", command, "orders", *more)
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert result.stderr == "regraft: there is no mailbox 'orders'\n"


def test_queue_purge_remove_rename_seek(node: FakeNode, regraft: Regraft) -> None:
    node.obey = lambda what, arguments: {
        "queue": QUEUE, "members": [], "purged": 1188, "next": 12}  # fmt: skip
    for command, says, told in (
        (["purge", "orders"], "dropped 1,188 messages of orders", ("queue-purge", {})),
        (
            ["remove", "orders", "--force"],
            "removed orders, with 1,200 messages that waited in it",
            ("queue-remove", {"force": True}),
        ),
        (["rename", "orders", "old"], "orders is old now", ("queue-rename", {"to": "old"})),
        (["move", "orders"], "orders is here already", ("queue-move", {})),
        (["seek", "orders", "#12"], "orders goes on with #12", ("queue-seek", {"sequence": 12})),
        (["seek", "orders", "start"], "orders goes on with #12", ("queue-seek", {"sequence": 1})),
        (
            ["seek", "orders", "2026-01-01T00:00+00:00"],
            "orders goes on with #12",
            ("queue-seek", {"time_us": 1_767_225_600_000_000}),
        ),
    ):
        result = regraft("queue", *command)
        assert (result.exit_code, result.output) == (0, says + "\n")
        assert node.commands[-1] == (told[0], {"name": "orders", **told[1]})
    assert regraft("queue", "seek", "orders", "--", "-1h").exit_code == 0
    assert regraft("queue", "seek", "orders", "yesterday").exit_code == 2


def test_who_is_asked_may_say_no(
    node: FakeNode, regraft: Regraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.obey = lambda what, arguments: {"queue": QUEUE, "members": [], "topic": TOPIC}
    asked: list[str] = []

    def no(text: str, **more: Any) -> bool:
        asked.append(text)
        return False

    monkeypatch.setattr(common.sys, "stdin", _Terminal())
    monkeypatch.setattr(click, "confirm", no)
    assert not common.sure("Sure?", False) and common.sure("Sure?", True)
    assert asked == ["Sure?"]


class _Terminal:
    def isatty(self) -> bool:
        return True


def test_queue_browse(node: FakeNode, regraft: Regraft) -> None:
    mailbox = node.answers_else = Mailbox(
        order("a", attributes={"n": 1}), order("b", attributes={"n": 2}), order("c"), first=5
    )
    result = regraft("queue", "browse", "orders")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "shop/orders  a  n=1",
        "shop/orders  b  n=2",
        "shop/orders  c",
    ]
    (wanted,) = mailbox.all(native.Subscribe)
    assert (wanted.durable, wanted.browse) == ("orders", True)
    assert regraft("queue", "browse", "orders", "-w", "n > 1", "--body").stdout == "b\n"
    assert regraft("queue", "browse", "orders", "-n", "2", "--raw").stdout == "ab"
    found = [
        json.loads(line)
        for line in regraft("queue", "browse", "orders", "--json").stdout.splitlines()
    ]
    assert [(one["sequence"], one["body"]) for one in found] == [(5, "a"), (6, "b"), (7, "c")]
    assert mailbox.all(native.Settle) == []


def test_queue_get_accepts_what_it_printed(node: FakeNode, regraft: Regraft) -> None:
    mailbox = node.answers_else = Mailbox(order("a"), order("b"), order("c"))
    result = regraft("queue", "get", "orders", "-n", "2", "--body")
    assert (result.exit_code, result.output) == (0, "a\nb\n")
    (wanted,) = mailbox.all(native.Subscribe)
    assert (wanted.durable, wanted.existing, wanted.in_flight) == ("orders", True, 2)
    settled = {n: one.outcome.name for one in mailbox.all(native.Settle) for n in one.ranges}
    assert settled == {1: "ACCEPT", 2: "ACCEPT", 3: "RELEASE"}
    result = regraft("queue", "get", "orders", "--all", "-t", "0.05", "--raw")
    assert (result.exit_code, result.output) == (0, "abc")
    result = regraft("queue", "get", "orders", "-n", "4", "-t", "50ms", "--body")
    assert (result.exit_code, result.stdout) == (1, "a\nb\nc\n")
    assert result.stderr == "regraft: no message in orders within 0.05 s\n"


def test_queue_get_of_what_is_not_there(node: FakeNode, regraft: Regraft) -> None:
    gone = LocalError("unknown-mailbox", "there is no mailbox 'x'")
    node.answers_else = lambda message: (
        [native.Error.of(gone, subscription=message.id)]
        if isinstance(message, native.Subscribe)
        else []
    )
    result = regraft("queue", "get", "x")
    assert (result.exit_code, result.stderr) == (2, "regraft: there is no mailbox 'x'\n")


def test_queue_send(node: FakeNode, regraft: Regraft) -> None:
    node.obey = lambda what, arguments: {"queue": QUEUE, "members": []}
    mailbox = node.answers_else = Mailbox()
    result = regraft("queue", "send", "orders", "tea", "--priority", "9", "-s", "n=1", "-v")
    assert (result.exit_code, result.stderr) == (
        0,
        "published 1 message to shop/orders, taken by 2\n",
    )
    (sent,) = mailbox.all(Message)
    assert (sent.topic, sent.body, sent.priority) == ("shop/orders", b"tea", 9)
    assert sent.delivery_mode is DeliveryMode.PERSISTENT and sent.attributes == {"n": 1}
    assert regraft("queue", "send", "orders", "--lines", input="a\nb\n").exit_code == 0
    assert [one.body for one in mailbox.all(Message)] == [b"tea", b"a", b"b"]
    node.obey = lambda what, arguments: {"queue": {**QUEUE, "topic": "shop/+"}, "members": []}
    result = regraft("queue", "send", "orders", "tea")
    assert result.exit_code == 2
    assert "orders takes shop/+: say the topic, regraft pub TOPIC" in result.stderr


def test_names_are_completed(node: FakeNode, regraft: Regraft) -> None:
    def obey(what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"queues": [QUEUE, {**QUEUE, "name": "bills"}], "topics": [TOPIC]}

    node.obey = obey

    def completed(*words: str) -> list[tuple[str, str | None]]:
        shell = ShellComplete(cli.group, {}, "regraft", "_REGRAFT_COMPLETE")
        found = shell.get_completions(list(words[:-1]), words[-1])
        return [(one.value, one.help) for one in found]

    assert completed("queue", "show", "") == [("orders", "shop/orders"), ("bills", "shop/orders")]
    assert completed("queue", "show", "b") == [("bills", "shop/orders")]
    assert completed("topic", "show", "") == [("prices", "market/#")]
    assert completed("dlq", "list", "-m", "o") == [("orders", "shop/orders")]
    assert [name for name, _ in completed("q")] == ["queue"]
    os.environ["REGRAFT_URL"] = "127.0.0.1:1"
    assert completed("queue", "show", "") == []


# ----------------------------------------------------------------------------------- topic


def test_topics(node: FakeNode, regraft: Regraft) -> None:
    node.obey = lambda what, arguments: {"topic": TOPIC, "topics": [TOPIC]}
    result = regraft(
        *("topic", "create", "prices", "market/#", "--retain", "--keep", "1m"),
        *("--keep-bytes", "1KiB", "--persistent", "--holder", "harbour"),
    )
    assert (result.exit_code, result.output) == (0, "prices is market/#, retained\n")
    what, told = node.commands[-1]
    assert what == "topic-create"
    assert told == {
        "name": "prices", "topic": "market/#", "exact": False, "retain": True, "keep_s": 60,
        "keep_bytes": 1024, "persistent": True, "quota_messages": 0, "quota_bytes": 0,
        "holder": "harbour",
    }  # fmt: skip
    assert regraft("topic", "list").stdout.splitlines()[1].startswith("prices  market/#  no")
    assert json.loads(regraft("topic", "list", "--json").stdout) == [TOPIC]
    assert "bytes           4,321" in regraft("topic", "show", "prices").stdout
    assert json.loads(regraft("topic", "show", "prices", "--json").stdout) == TOPIC
    result = regraft("topic", "remove", "prices")
    assert result.output == "removed prices, with all that is retained of it\n"
    assert node.commands[-1] == ("topic-remove", {"name": "prices"})
    node.obey = lambda what, arguments: {"topics": []}
    assert regraft("topic", "list").stderr == "no topics are administered\n"


# ------------------------------------------------------------------------------------- dlq


def dead(text: str, reason: str, **more: Any) -> Message:
    attributes = {
        "dead_reason": reason,
        "dead_text": "no paper",
        "dead_mailbox": "orders",
        "dead_topic": "shop/orders",
        "dead_deliveries": 5,
        "dead_at": Timestamp(1_800_000_000_000_000),
        "dead_history": json.dumps([{"mailbox": "bills", "reason": "expired", "at_us": 1}]),
    }
    return Message("dead/orders", text.encode(), {**attributes, **more})


def test_dlq_list_and_show(node: FakeNode, regraft: Regraft) -> None:
    mailbox = node.answers_else = Mailbox(
        dead("tea\n" + "x" * 100, "rejected"), dead("milk", "max-deliveries"), first=17
    )
    assert regraft("dlq", "list").stdout.splitlines() == [
        "sequence  reason          queue   topic        deliveries  at                         "
        "text      body",
        "17        rejected        orders  shop/orders  5           2027-01-15T08:00:00+00:00  "
        "no paper  tea " + "x" * 36 + "...",
        "18        max-deliveries  orders  shop/orders  5           2027-01-15T08:00:00+00:00  "
        "no paper  milk",
    ]
    result = regraft("dlq", "list", "-n", "1", "--json")
    assert json.loads(result.stdout)["sequence"] == 17
    assert result.stderr == "more than 1: not all are shown (--rows)\n"
    chosen = regraft("dlq", "list", "-w", "dead_reason = 'rejected'", "-m", "mine").stdout
    assert len(chosen.splitlines()) == 2
    assert mailbox.all(native.Subscribe)[-1].durable == "mine"
    lines = regraft("dlq", "show", "18").stdout.splitlines()
    assert lines[0] == "sequence    18"
    assert "earlier     expired in bills" in lines
    assert lines[-1].startswith("dead/orders  milk  dead_reason=max-deliveries")
    assert json.loads(regraft("dlq", "show", "18", "--json").stdout)["body"] == "milk"
    result = regraft("dlq", "show", "19")
    assert (result.exit_code, result.stderr) == (
        2,
        "regraft: there is no dead letter 19 in dead-letters\n",
    )


def test_dlq_retry_and_purge(node: FakeNode, regraft: Regraft) -> None:
    left = [2, 0]
    node.obey = lambda what, arguments: {
        "retried": 3, "left": left.pop(0), "queue": QUEUE, "members": [], "purged": 5,
    }  # fmt: skip
    result = regraft("dlq", "retry", "--all", "--to", "orders")
    assert (result.exit_code, result.output) == (0, "gave back 6 dead letters\n")
    told = {"mailbox": "dead-letters", "to": "orders", "all": True}
    assert node.commands == [("dlq-retry", told)] * 2
    left.append(9)
    result = regraft("dlq", "retry", "17", "18", "19")
    assert (result.exit_code, result.output) == (0, "gave back 3 dead letters\n")
    assert node.commands[-1][1]["ranges"] == [[17, 19]]
    left.append(9)
    assert regraft("dlq", "retry", "1", "2", "3", "4").exit_code == 1  # not all were there
    result = regraft("dlq", "retry")
    assert result.exit_code == 2 and "say which" in result.stderr
    assert regraft("dlq", "retry", "17", "--all").exit_code == 2
    node.obey = lambda what, arguments: {"queue": QUEUE, "members": [], "purged": 5}
    assert regraft("dlq", "purge").output == "dropped 5 messages of dead-letters\n"


def test_without_a_dead_letter_there_is_no_mailbox_of_them(
    node: FakeNode, regraft: Regraft
) -> None:
    gone = LocalError("unknown-mailbox", "there is no such mailbox")

    def refuse(what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        raise gone

    node.obey = refuse
    node.answers_else = lambda message: (
        [native.Error.of(gone, subscription=message.id)]
        if isinstance(message, native.Subscribe)
        else []
    )
    for command in (["list"], ["retry", "--all"], ["purge"]):
        result = regraft("dlq", *command)
        assert (result.exit_code, result.output) == (0, "there are no dead letters\n")
    result = regraft("dlq", "list", "-m", "mine")
    assert (result.exit_code, result.output) == (2, "regraft: there is no such mailbox\n")


# ----------------------------------------------------------------------- delayed, and pub


def test_delayed(node: FakeNode, regraft: Regraft) -> None:
    rows = [{"id": 2**62, "topic": "a", "deliver_at_us": 1_800_000_000_000_000, "size": 1234}]
    node.obey = lambda what, arguments: {"delayed": rows, "count": 5, "cancelled": 1}
    result = regraft("delayed", "list", "-n", "1")
    assert result.stdout.splitlines() == [
        "id                   topic  deliver_at                size",
        "4611686018427387904  a      2027-01-15T08:00:00.000Z  1,234",
    ]
    assert result.stderr == "1 of 5 shown\n"
    assert node.commands == [("delayed-list", {"rows": 1})]
    assert json.loads(regraft("delayed", "list", "--json").stdout)["count"] == 5
    result = regraft("delayed", "cancel", "7", "8")
    assert result.output == "cancelled 1 message with id 7\ncancelled 1 message with id 8\n"
    assert node.commands[-2:] == [("delayed-cancel", {"id": n}) for n in (7, 8)]

    def refuse(what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        raise LocalError("not-waiting", "no message with id 7 waits")

    node.obey = refuse
    result = regraft("delayed", "cancel", "7")
    assert (result.exit_code, result.stderr) == (2, "regraft: no message with id 7 waits\n")
    node.obey = lambda what, arguments: {"delayed": [], "count": 0}
    assert regraft("delayed", "list").stderr == "nothing waits for its time\n"


def test_pub_later(node: FakeNode, regraft: Regraft) -> None:
    mailbox = node.answers_else = Mailbox()
    result = regraft("pub", "a", "tea", "--delay", "10m", "-v")
    assert result.exit_code == 0, result.output
    (sent,) = mailbox.all(Message)
    assert result.stderr == f"published 1 message to a, to be delivered later, id {sent.id}\n"
    assert sent.delivery_mode is DeliveryMode.PERSISTENT
    assert 599_000_000 < sent.deliver_at_us - sent.timestamp_us <= 600_100_000
    assert regraft("pub", "a", "tea", "--at", "2030-01-01T00:00Z", "-n", "2").exit_code == 0
    assert mailbox.all(Message)[-1].deliver_at_us == 1_893_456_000_000_000
    assert len({one.id for one in mailbox.all(Message)}) == 3
    for bad in (["--at", "soon"], ["--at", "2030-01-01", "--delay", "1"], ["--delay", "x"]):
        assert regraft("pub", "a", "tea", *bad).exit_code == 2


def test_times_and_sizes() -> None:
    times = ("30", "1.5s", "500ms", "90m", "2h", "7d", "1w", " 3 ")
    assert [duration(text) for text in times] == [30, 1.5, 0.5, 5400, 7200, 604_800, 604_800, 3]
    assert [size(text) for text in ("7", "1_000", "2KiB", "3MiB", "1GiB")] == [
        *(7, 1000, 2048, 3 << 20, 1 << 30)
    ]
    for bad in ("", "x", "-1", "1y", "1e3"):
        with pytest.raises(click.BadParameter):
            duration(bad)
        with pytest.raises(click.BadParameter):
            size(bad)
    assert parse_moment("2030-01-01T00:00+00:00").timestamp() == 1_893_456_000
    assert parse_moment("2030-01-01").tzinfo is not None
    assert parse_moment("2030-01-01").replace(tzinfo=None) == datetime(2030, 1, 1)
    with pytest.raises(LocalError, match="no moment"):
        parse_moment("tomorrow")


def test_a_queue_that_moved_says_from_where_and_to_where(node: FakeNode, regraft: Regraft) -> None:
    came = {**QUEUE, "moved_from": "north", "moved_to": ""}
    node.obey = lambda what, arguments: {"queue": came, "queues": [came, QUEUE]}
    result = regraft("queue", "move", "orders", "--from", "north")
    assert (result.exit_code, result.output) == (0, "orders comes from node north\n")
    assert node.commands[-1] == ("queue-move", {"name": "orders", "from": "north"})
    head, first, second = regraft("queue", "list").stdout.splitlines()
    assert head.endswith("  moved") and first.endswith("  from north") and "from" not in second
