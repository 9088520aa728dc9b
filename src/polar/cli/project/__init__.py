"""Commands for a newcomer: a demo and a project to begin with, both from files of the package."""
