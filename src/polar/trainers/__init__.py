"""Trainers: weight updates of engines, the reference trainer, and bridges to trainers of others."""
