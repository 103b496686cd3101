"""Networks of real nodes, each a process, with real clients: what happens when some of them fail.

cluster     processes, and when they are one tree
crowd       a publisher and a subscriber at every node, and an account of every message
namespaces  two networks with a cable between them that can be pulled
"""
