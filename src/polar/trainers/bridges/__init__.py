"""Bridges to trainers of others: each gives a trainer whole groups of sessions in the trainer's own types.

Each module imports its trainer's package only when it is used. docs/trainers.md has a section for each."""
