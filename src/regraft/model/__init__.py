"""The nouns of the bus: messages, topics, selectors, identities.

Each module here is the slow and obvious reference of what it describes. Faster code elsewhere
must agree with it, and tests compare the two. This room imports nothing of ours but `errors` and
`limits`.
"""
