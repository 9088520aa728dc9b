"""`polar show`: one session as its walk, its conversation, one call or its tokens."""
