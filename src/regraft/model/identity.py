"""Who a node is.

The id is made at the first start and kept with the data; the name is for people and may change;
the incarnation grows at every start, so that peers can tell a restarted node from its past self.
"""

from __future__ import annotations

from dataclasses import dataclass

NODE_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """One node, in one of its lives."""

    node_id: bytes
    name: str
    incarnation: int

    def __post_init__(self) -> None:
        assert len(self.node_id) == NODE_ID_BYTES, "a node id has 16 bytes"
        assert self.incarnation >= 1, "the first incarnation is 1"

    @property
    def hex(self) -> str:
        """The id as people see it: 32 digits."""
        return self.node_id.hex()
