"""What goes where: who wants a message of this topic.

Nothing here knows of connections or of bytes on the wire; a taker is a number.
"""
