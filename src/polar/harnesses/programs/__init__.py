"""Programs of harnesses: fetched, unpacked and kept in the cache."""
