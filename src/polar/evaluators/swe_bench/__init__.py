"""The `swe_bench` evaluator: a patch, the tests of its row, and the official grading."""
