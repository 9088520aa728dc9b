"""Templates for text and HTML."""

from plume.environment import Environment, Template
from plume.errors import TemplateError, TemplateNotFound

__all__ = ["Environment", "Template", "TemplateError", "TemplateNotFound"]
