"""`regraft inspect topology`, `regraft link` and `regraft node`, with nodes that only answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from fake_nodes import FakeNode, FakeNodes

from regraft import LocalError, RegraftError, WorldError, cli, connect_blocking
from regraft.commands import link, topology
from regraft.commands.topology import Seen, Tree
from regraft.wire import native

Regraft = Callable[..., Result]


@pytest.fixture
def regraft(monkeypatch: pytest.MonkeyPatch) -> Regraft:
    for variable in [name for name in os.environ if name.startswith("REGRAFT_")]:
        monkeypatch.delenv(variable)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(cli.group, arguments, prog_name="regraft")

    return call


@pytest.fixture
def nodes() -> Iterator[FakeNodes]:
    """harbour above north and south, north above island."""
    with FakeNodes("harbour", "north", "south", "island") as found:
        found.place("north", "harbour")
        found.place("south", "harbour")
        found.place("island", "north")
        yield found


# ---------------------------------------------------------------------------- topology


def test_the_tree_is_drawn(nodes: FakeNodes, regraft: Regraft) -> None:
    nodes["south"].clients = 3
    result = regraft("inspect", "topology", "-u", nodes["north"].address)
    assert result.exit_code == 0, result.output
    at = {node.name: node.address.ljust(15) for node in nodes.nodes}
    assert result.stdout.splitlines() == [
        "node          id        address          hops  rtt      clients",
        f"harbour       01010101  {at['harbour']}  0              0",
        f"├─ north      02020202  {at['north']}  1     0.25 ms  0        <- asked",
        f"│  └─ island  04040404  {at['island']}  2     0.25 ms  0",
        f"└─ south      03030303  {at['south']}  1     0.25 ms  3",
    ]
    assert result.stderr == "4 nodes\n"


def test_who_does_not_answer_is_shown_as_such(nodes: FakeNodes, regraft: Regraft) -> None:
    nodes.kill("north")
    nodes.kill("harbour")
    result = regraft("inspect", "topology", "-u", nodes["island"].address)
    lines = result.stdout.splitlines()[1:]
    assert lines[0].endswith("  unreachable: Connection refused")
    assert lines[0].split()[3] == "1"
    assert lines[0].startswith("?          02020202")
    assert lines[1].startswith("└─ island  04040404") and lines[1].endswith("<- asked")
    assert result.stderr == "2 nodes, 1 of them unreachable from here\n"
    assert result.exit_code == 0


def test_a_child_that_does_not_answer_has_its_place(nodes: FakeNodes, regraft: Regraft) -> None:
    nodes.kill("south")
    data = json.loads(regraft("inspect", "topology", "--json", "-u", nodes["north"].address).stdout)
    assert data["asked"] == nodes["north"].id
    assert (data["trees"], data["left_out"]) == (1, 0)
    assert data["nodes"][0]["id"] == nodes["harbour"].id
    south = next(node for node in data["nodes"] if node["id"] == nodes["south"].id)
    assert (south["parent"], south["hops"]) == (nodes["harbour"].id, 1)
    assert (south["name"], south["clients"], south["unreachable"]) == (
        "",
        None,
        "Connection refused",
    )
    island = next(node for node in data["nodes"] if node["name"] == "island")
    assert (island["parent"], island["hops"], island["rtt_us"]) == (nodes["north"].id, 2, 250)
    assert island["topology"]["children"] == []


def test_a_silent_node_does_not_hold_up_the_others(
    nodes: FakeNodes, regraft: Regraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "ANSWER_S", 0.2)
    nodes["north"].silent = True
    result = regraft("inspect", "topology", "-u", nodes["harbour"].address)
    assert "unreachable: no answer within 0.2 s" in result.stdout
    assert "south" in result.stdout and "island" not in result.stdout


def test_another_node_at_the_address_is_not_taken_for_it(
    nodes: FakeNodes, regraft: Regraft
) -> None:
    nodes["south"].says = {**nodes["south"].topology(), "id": "ff" * 16, "name": "stranger"}
    result = regraft("inspect", "topology", "-u", nodes["harbour"].address)
    assert "unreachable: stranger answers there" in result.stdout


def test_no_more_are_asked_than_was_said(nodes: FakeNodes, regraft: Regraft) -> None:
    result = regraft("inspect", "topology", "-n", "2", "-u", nodes["harbour"].address)
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == "2 nodes, 2 more not asked (--rows)\n"


def test_a_node_without_a_network(nodes: FakeNodes, regraft: Regraft) -> None:
    nodes["harbour"].says = {}
    for command in (["inspect", "topology"], ["link", "remove", "x"], ["link", "add", "x:1"]):
        result = regraft(*command, "-u", nodes["harbour"].address)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "regraft: this node takes part in no network of nodes\n"


def test_a_tree_that_changes_is_drawn_all_the_same() -> None:
    """Each says that the other is its parent; a third stands alone."""
    seen = [Seen("a", "a", parent="b"), Seen("b", "b", parent="a"), Seen("c", "c", asked=True)]
    tree = Tree({one.id: one for one in seen}, 0)
    assert [(one.id, depth) for one, depth, _ in tree.walk()] == [("c", 0), ("a", 0), ("b", 1)]
    circle = Tree({one.id: one for one in seen[:2]}, 0)
    assert [(one.id, depth) for one, depth, _ in circle.walk()] == [("a", 0), ("b", 1)]
    apart = Tree({"a": Seen("a"), "c": Seen("c", asking=True, asked=True)}, 0)
    assert "2 trees" in topology.summary(apart)
    assert topology.draw(apart)[-1].endswith("<- asked, looks for a place")


def test_a_deep_tree_is_drawn_plainly_where_the_terminal_is() -> None:
    seen = [Seen("0", "top")] + [Seen(str(n), f"n{n}", parent=str(n - 1)) for n in range(1, 2000)]
    lines = topology.draw(Tree({one.id: one for one in seen}, 0), topology.PLAIN_PICTURE)
    assert len(lines) == 2001
    assert lines[2].startswith("`- n1") and lines[3].startswith("   `- n2")
    assert all(line.isascii() for line in lines)


# -------------------------------------------------------------------------------- link


def moves(nodes: FakeNodes, child: str, parent: str) -> Callable[[str, dict[str, Any]], Any]:
    def obey(what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        nodes.place(child, parent)
        return {}

    return obey


def test_link_add_waits_until_it_is_done(nodes: FakeNodes, regraft: Regraft) -> None:
    island, south = nodes["island"], nodes["south"]
    island.obey = moves(nodes, "island", "south")
    result = regraft("link", "add", f"regraft://{south.address}", "-u", island.address)
    assert (result.exit_code, result.output) == (0, f"island is below south ({south.address})\n")
    assert island.commands == [("link-add", {"address": south.address})]


def test_link_add_by_another_address_of_the_same_node(nodes: FakeNodes, regraft: Regraft) -> None:
    nodes["island"].obey = moves(nodes, "island", "south")
    other = nodes["south"].address.replace("127.0.0.1", "localhost")
    result = regraft("link", "add", other, "-u", nodes["island"].address)
    assert (result.exit_code, result.output) == (
        0,
        f"island is below south ({nodes['south'].address})\n",
    )


def test_link_add_says_where_it_ended_instead(nodes: FakeNodes, regraft: Regraft) -> None:
    nodes["island"].obey = moves(nodes, "island", "south")
    nodes.kill("harbour")
    result = regraft("link", "add", nodes["harbour"].address, "-u", nodes["island"].address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"regraft: {nodes['harbour'].address} did not take island, or did not answer; "
        f"it is below south ({nodes['south'].address}) now\n"
    )


def test_link_add_that_does_not_come_about(nodes: FakeNodes, regraft: Regraft) -> None:
    where = ["-u", nodes["island"].address]
    result = regraft("link", "add", "10.0.0.7:1", "--timeout", "0.2", *where)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "regraft: island found no place below 10.0.0.7:1 within 0.2 s; "
        "see `regraft inspect topology`, and its log for the reason\n"
    )
    result = regraft("link", "add", "10.0.0.7", "--timeout", "0", *where)
    assert (result.exit_code, result.output) == (0, "island asks 10.0.0.7:7447 for a place\n")


def test_link_add_of_what_is_no_address(regraft: Regraft) -> None:
    result = regraft("link", "add", "10.0.0.7:99999")
    assert result.exit_code == 2
    assert "is not a number from 1 to 65535" in result.stderr


@pytest.mark.parametrize("by", ["name", "id", "prefix", "address"])
def test_link_remove(nodes: FakeNodes, regraft: Regraft, by: str) -> None:
    south = nodes["south"]
    text = {
        "name": "south",
        "id": south.id,
        "prefix": south.id[:8].upper(),
        "address": south.address,
    }[by]
    result = regraft("link", "remove", text, "-u", nodes["harbour"].address)
    assert (result.exit_code, result.output) == (
        0,
        f"harbour ended its link to south ({south.address})\n",
    )
    assert nodes["harbour"].commands == [("link-remove", {"node": south.id})]


def test_link_remove_of_who_is_no_neighbour(nodes: FakeNodes, regraft: Regraft) -> None:
    result = regraft("link", "remove", "island", "-u", nodes["harbour"].address)
    north, south = nodes["north"], nodes["south"]
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "regraft: 'island' is no neighbour of harbour; it has "
        f"north {north.id[:8]} {north.address}, south {south.id[:8]} {south.address}\n"
    )


def test_link_remove_of_a_name_that_two_have(nodes: FakeNodes, regraft: Regraft) -> None:
    nodes["north"].name = nodes["south"].name = "twin"
    result = regraft("link", "remove", "twin", "-u", nodes["harbour"].address)
    assert result.exit_code == 2
    assert "'twin' may be several neighbours of harbour: twin 02020202" in result.stderr
    assert nodes["harbour"].commands == []


def test_link_remove_where_there_is_none(regraft: Regraft) -> None:
    with FakeNodes("alone") as nodes:
        result = regraft("link", "remove", "x", "-u", nodes["alone"].address)
    assert (result.exit_code, result.stderr) == (2, "regraft: alone has no neighbours\n")


def test_the_shell_completes_neighbours(nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGRAFT_URL", nodes["harbour"].address)
    complete = ShellComplete(cli.group, {}, "regraft", "_REGRAFT_COMPLETE")
    found = complete.get_completions(["link", "remove"], "")
    assert [item.value for item in found] == ["north", "south"]
    found = complete.get_completions(["link", "remove"], "s")
    assert [(item.value, item.help) for item in found] == [("south", nodes["south"].address)]
    url = ["--url", nodes["island"].address]
    assert [item.value for item in complete.get_completions(["link", "remove", *url], "n")] == [
        "north"
    ]
    monkeypatch.setattr(link, "NAME_S", 0.05)
    nodes["harbour"].silent = True
    assert complete.get_completions(["link", "remove"], "") == []


# ------------------------------------------------------------------------- node, and errors


def test_node_leave(nodes: FakeNodes, regraft: Regraft) -> None:
    island = nodes["island"]
    island.goes_after = "leave"
    result = regraft("node", "leave", "-u", island.address)
    assert (result.exit_code, result.output) == (0, "island has left\n")
    assert island.commands == [("leave", {})]


def test_a_node_that_leaves_before_it_says_so(nodes: FakeNodes, regraft: Regraft) -> None:
    island = nodes["island"]
    island.goes_after = "leave"
    island.says_bye = [native.Goaway("it was told to", 1000)]
    result = regraft("node", "leave", "-u", island.address)
    assert (result.exit_code, result.output) == (0, "island has left\n")
    island.says_bye = [native.Error.of(WorldError("heartbeat-lost", "nothing was heard"))]
    result = regraft("node", "leave", "-u", island.address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "regraft: in flight: nothing was heard\n"


def test_node_leave_that_takes_too_long(nodes: FakeNodes, regraft: Regraft) -> None:
    where = ["-u", nodes["island"].address]
    result = regraft("node", "leave", "--timeout", "0.1", *where)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "regraft: island is still there after 0.1 s; see its log\n"
    assert regraft("node", "leave", "--timeout", "0", *where).output == "island leaves\n"


def refuses(error: RegraftError) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    def obey(what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        raise error

    return obey


def test_what_the_node_says_against_it_is_one_line(nodes: FakeNodes, regraft: Regraft) -> None:
    node: FakeNode = nodes["harbour"]
    node.obey = refuses(LocalError("not-authorized", "anonymous may not administer this node"))
    for command in (["link", "add", "x:1"], ["link", "remove", "south"], ["node", "leave"]):
        result = regraft(*command, "-u", node.address)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "regraft: anonymous may not administer this node\n"


def test_the_blocking_client_has_commands(nodes: FakeNodes) -> None:
    node = nodes["harbour"]
    node.obey = lambda what, arguments: {"done": what, **arguments}
    with connect_blocking(node.address) as client:
        assert client.command("x", a=[1, "two"]) == {"done": "x", "a": [1, "two"]}
        node.obey = refuses(LocalError("not-supported", "not that"))
        with pytest.raises(LocalError, match="not that"):
            client.command("y")
        assert client.inspect("node")["sessions"] == 1
