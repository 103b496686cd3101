"""The room that touches the world: the only asyncio, sockets, files, clock and logging.

Everything that decides lives elsewhere and is plain synchronous code. This room carries out what
it decided, and reports what the world did.
"""
