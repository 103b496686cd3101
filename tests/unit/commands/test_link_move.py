"""What `regraft link move` makes of two links, in a tree that it looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest

from regraft.commands.link_move import _ends, planned
from regraft.commands.topology import Seen, Tree
from regraft.errors import RegraftError


def tree() -> Tree:
    """root has left and right; left has a and b-1, right has c; a has d."""
    parents = {
        **{"root": None, "left": "root", "right": "root"},
        **{"a": "left", "b-1": "left", "c": "right", "d": "a"},
    }
    nodes = {}
    for number, (name, parent) in enumerate(parents.items()):
        id = f"{number:x}{name.encode().hex():0<31}"[:32]
        nodes[name] = Seen(id, name, f"host:{7000 + number}", parent)
    for seen in nodes.values():
        seen.parent = nodes[seen.parent].id if seen.parent else None
    return Tree({seen.id: seen for seen in nodes.values()}, 0)


@pytest.mark.parametrize(
    ("old", "new", "mover", "below", "way"),
    [
        ("left-a", "a-c", "a", 1, ["left", "root", "right", "c"]),
        ("a-left", "b-1-a", "a", 1, ["left", "b-1"]),
        ("root-left", "left-c", "left", 3, ["root", "right", "c"]),
        ("host:7003-host:7001", "a-root", "a", 1, ["left", "root"]),
    ],
)
def test_the_way(old: str, new: str, mover: str, below: int, way: list[str]) -> None:
    found = planned(tree(), old, new)
    (step,) = found.steps
    assert (step.mover.name, found.below) == (mover, below)
    assert [seen.name for seen in step.way] == way
    assert {seen.name for seen in found.touched} == {mover, *way}


def edges(found: Tree) -> set[frozenset[str]]:
    links = [(seen, found.nodes[seen.parent]) for seen in found.nodes.values() if seen.parent]
    return {frozenset((one.name, other.name)) for one, other in links}


@pytest.mark.parametrize(
    ("old", "new", "movers"),
    [
        ("left-a", "d-c", ["d", "a"]),
        ("root-left", "right-d", ["d", "a", "left"]),
        ("root-left", "b-1-root", ["b-1", "left"]),
        ("root-right", "c-d", ["c", "right"]),
    ],
)
def test_a_branch_is_turned_round(old: str, new: str, movers: list[str]) -> None:
    """Every step is one that a node can do, and in the end one link has replaced another."""
    found = tree()
    before = edges(found)
    lost, made = (frozenset(seen.name for seen in _ends(found, text)) for text in (old, new))
    assert lost in before and made not in before
    steps = planned(found, old, new).steps
    assert [step.mover.name for step in steps] == movers
    for step in steps:
        mover, way = step.mover, step.way
        assert mover.parent == way[0].id and mover not in way
        links = edges(found)
        for one, other in pairwise(way):
            assert frozenset((one.name, other.name)) in links
        mover.parent = way[-1].id
        assert len(list(found.walk())) == len(found.nodes) and len(found.roots()) == 1
    assert edges(found) == before - {lost} | {made}
    for step in reversed(steps):
        mover, way = step.back.mover, step.back.way
        assert mover.parent == way[0].id
        mover.parent = way[-1].id
    assert edges(found) == before


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("a-c", "a-root", "have no link"),
        ("left-a", "c-left", "above left-a: that is a ring"),
        ("root-left", "d-b-1", "below root-left: that is a ring"),
        ("left-a", "left-a", "is the link that there is"),
        ("left-a", "a-d", "below left-a: that is a ring"),
        ("left-x", "a-c", "is no pair of nodes"),
        ("left", "a-c", "is no pair of nodes"),
    ],
)
def test_what_cannot_be(old: str, new: str, text: str) -> None:
    with pytest.raises(RegraftError, match=text):
        planned(tree(), old, new)


def test_who_does_not_answer_cannot_help() -> None:
    found = tree()
    next(seen for seen in found.nodes.values() if seen.name == "root").unreachable = "timed out"
    with pytest.raises(RegraftError, match="root does not answer"):
        planned(found, "left-a", "a-c")
