"""What is kept: the journal of calls, the files of a run and their paths."""
