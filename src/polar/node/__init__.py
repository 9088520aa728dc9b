"""One gateway node: a gateway wired to a pipeline, and where its sessions come from."""

from polar.node.wiring import JournalledSource, Node, open_node

__all__ = ["JournalledSource", "Node", "open_node"]
