"""Storage: databases and the journal, the files of a run, and the cache shared by all runs."""
