"""Programs of harnesses: downloaded, unpacked and kept in the cache."""
