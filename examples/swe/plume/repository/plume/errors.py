"""What can be wrong with a template."""


class TemplateError(Exception):
    def __init__(self, message: str, name: str = "", line: int | None = None) -> None:
        place = f"{name or 'template'}, line {line}: " if line is not None else ""
        super().__init__(place + message)
        self.line = line


class TemplateNotFound(TemplateError):
    """There is no such template, or it is outside the folder of templates."""
