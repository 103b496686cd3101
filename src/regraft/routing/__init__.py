"""What goes where: which interests cover which, and what neighbours have to be told.

Nothing here knows of connections or of bytes on the wire; an interest is a number.
"""
