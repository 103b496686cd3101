"""The commands of the shell that talk to a node, one module each."""
