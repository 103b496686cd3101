"""The transaction that the code at hand is in, if it is in one.

`async with client.transaction()` sets it; whatever is published or accepted in that block, and in
tasks that are begun there, belongs to it until it is over.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regraft.client.transaction import Transaction

CURRENT: ContextVar[Transaction | None] = ContextVar("regraft_transaction", default=None)
