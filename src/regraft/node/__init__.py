"""The one that knows all rooms: what happened goes in, what should be done comes out.

Nothing here opens a socket or a file, reads a clock, or draws a random number of its own.
"""
