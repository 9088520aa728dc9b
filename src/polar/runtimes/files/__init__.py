"""Reading, writing and copying a session's files from the node without following its links outside."""
