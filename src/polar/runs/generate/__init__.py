"""Offline data: tasks run until enough of their sessions are confirmed, and those become a data set."""
