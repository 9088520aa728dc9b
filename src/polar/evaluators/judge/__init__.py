"""The evaluator `judge`: another model scores a session against a rubric."""
