"""The HTTP routes: one file for each noun. They check the form of what comes in, no more."""
