"""`regraft tx`, with a node that only answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_nodes import FakeNode, FakeNodes

from regraft import LocalError, cli

Regraft = Callable[..., Result]

ROW = {
    "gid": "order-7",
    "client": "shop",
    "since_us": 1_800_000_000_000_000,
    "messages": 3,
    "bytes": 300,
    "settles": 2,
    "makes": ["new"],
    "removes": [],
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

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(cli.group, arguments, prog_name="regraft")

    return call


def test_a_list(node: FakeNode, regraft: Regraft) -> None:
    node.obey = lambda what, arguments: {"transactions": [ROW]}
    result = regraft("tx", "list")
    assert result.exit_code == 0, result.output
    head, row = result.output.splitlines()
    assert head.split()[:3] == ["gid", "client", "since"]
    assert "order-7" in row and "shop" in row and "2027-01-15T08:00:00.000Z" in row
    assert json.loads(regraft("tx", "list", "--json").output) == {"transactions": [ROW]}
    ending = ROW | {"until_us": 1_800_000_060_000_000}
    node.obey = lambda what, arguments: {"transactions": [ending]}
    assert "2027-01-15T08:01:00.000Z" in regraft("tx", "list").output
    node.obey = lambda what, arguments: {"transactions": []}
    assert "no transaction is in doubt" in regraft("tx", "list").output


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_decided(node: FakeNode, regraft: Regraft, verb: str) -> None:
    state = "committed" if verb == "commit" else "rolled_back"
    answer: dict[str, Any] = {"gid": "order-7", "state": state, "messages": 3, "known": False}
    node.obey = lambda what, arguments: answer
    result = regraft("tx", verb, "order-7")
    assert result.exit_code == 0, result.output
    assert result.output == f"transaction order-7 is: {state.replace('_', ' ')}, 3 messages\n"
    assert node.commands == [(f"tx-{verb}", {"gid": "order-7"})]
    assert json.loads(regraft("tx", verb, "order-7", "--json").output) == answer
    answer |= {"known": True, "state": "committed" if verb == "rollback" else "rolled_back"}
    result = regraft("tx", verb, "order-7")
    assert result.exit_code == 1 and "was, before" in result.output


def test_one_that_nobody_knows(node: FakeNode, regraft: Regraft) -> None:
    def obey(what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        raise LocalError("unknown-transaction", "no transaction 'x' waits here")

    node.obey = obey
    result = regraft("tx", "commit", "x")
    assert result.exit_code == 2 and "waits here" in result.output
