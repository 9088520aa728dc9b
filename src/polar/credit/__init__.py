"""Credit: what a reward says about each token, and how often a task is solved. Arithmetic only."""
