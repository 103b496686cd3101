"""Who talks to whom: the tree of nodes, kept together whatever happens underneath.

`lstree` holds the rule by which the tree never has a ring; the others are what it stands on.
Nothing here knows of bytes or sockets: calls and the time go in, actions come out.
"""
