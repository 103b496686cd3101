"""What a selector may be and cost.

Rules:

- Depth, number of nodes and cost are bounded by constants, the same at every node.
- The cost is a rough number of comparisons per message, for the worst message of ordinary size: it
  guards against selectors that are cheap to send and dear to evaluate, and orders nothing.
- A refusal names its limit.
"""

from __future__ import annotations

from regraft.errors import LocalError
from regraft.limits import SELECTOR_COST_MAX, SELECTOR_DEPTH_MAX, SELECTOR_NODES_MAX
from regraft.model.selector import patterns
from regraft.model.selector.ast import Condition, Distance, In, Like, Node, Regexp, TopicMatch, walk

_DISTANCE_COST = 20
_SEARCH_COST = 10


def too_deep() -> LocalError:
    """The refusal of a tree that is too deep."""
    text = f"the selector is nested too deeply; limit SELECTOR_DEPTH_MAX is {SELECTOR_DEPTH_MAX}"
    return LocalError("bad-selector", text)


def check_depth(tree: Condition) -> None:
    """Refuse a tree that recursion had better not walk."""
    if max(depth for _, depth in walk(tree)) > SELECTOR_DEPTH_MAX:
        raise too_deep()


def check(tree: Condition) -> None:
    """Refuse a tree that is too large or costs too much."""
    check_depth(tree)
    # The values of an IN have a limit of their own.
    nodes = sum(1 - (len(node.items) if isinstance(node, In) else 0) for node, _ in walk(tree))
    if nodes > SELECTOR_NODES_MAX:
        text = f"the selector has {nodes} parts; limit SELECTOR_NODES_MAX is {SELECTOR_NODES_MAX}"
        raise LocalError("bad-selector", text)
    price = cost(tree)
    if price > SELECTOR_COST_MAX:
        text = f"the selector costs {price}; limit SELECTOR_COST_MAX is {SELECTOR_COST_MAX}"
        raise LocalError("bad-selector", f"{text}; regular expressions are what costs most")


def cost(tree: Node) -> int:
    """About how many comparisons the evaluation for one message is worth."""
    return sum(_own_cost(node) for node, _ in walk(tree))


def _own_cost(node: Node) -> int:
    match node:
        case Regexp(_, pattern):
            return _SEARCH_COST + patterns.regex_size(pattern)
        case Like(_, pattern):
            return _SEARCH_COST + len(pattern) // 64  # states are bits of machine words
        case In(_, items):
            return 1 + len(items).bit_length() - len(items)  # its values count as nodes, too
        case Distance():
            return _DISTANCE_COST
        case TopicMatch(pattern):
            return 1 + pattern.count("/")
        case _:
            return 1
