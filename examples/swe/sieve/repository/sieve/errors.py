"""What can go wrong with an expression."""


class SieveError(Exception):
    """The base of all errors of this library."""


class SyntaxProblem(SieveError):
    """The text is not an expression."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class EvaluationProblem(SieveError):
    """An expression has no value for a record."""

    def __init__(self, message: str, record: int | None = None) -> None:
        super().__init__(message if record is None else f"record {record}: {message}")
        self.record = record
