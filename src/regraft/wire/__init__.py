"""Bytes to events and back, without input or output: one module per protocol.

Nothing here opens a socket, waits, or reads a clock. No protocol's module knows another's;
`table` is the only list of them. What the other end sends wrong is a `PeerError`, never another
exception.
"""
