"""One gateway node: a gateway and a pipeline, and the source of their sessions."""

from polar.node.leftovers import sweep
from polar.node.serving import serve_server
from polar.node.uplink import Uplink
from polar.node.wiring import JournalledSource, Node, open_node

__all__ = ["JournalledSource", "Node", "Uplink", "open_node", "serve_server", "sweep"]
