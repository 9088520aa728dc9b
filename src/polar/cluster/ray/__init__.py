"""Gateway nodes placed by Ray: an actor on each matching machine keeps its nodes running."""
