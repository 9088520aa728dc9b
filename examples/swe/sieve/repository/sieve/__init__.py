"""Filters lists of dictionaries with a small expression language."""

from sieve.errors import EvaluationProblem, SieveError, SyntaxProblem
from sieve.filters import Filter, compile_filter

__all__ = ["EvaluationProblem", "Filter", "SieveError", "SyntaxProblem", "compile_filter"]
