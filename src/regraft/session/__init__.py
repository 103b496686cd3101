"""One client's contract: what waits for it, what it may send, when it is too slow.

Nothing here knows of sockets, of other sessions, or of how a message was routed.
"""
