"""`python -m polar.trainers.weights.untie MODEL FOLDER`: a copy of a checkpoint whose head is not tied, to start
vLLM from."""

from __future__ import annotations

import argparse
from pathlib import Path

from polar.trainers.weights.checkpoint import untie

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a copy of a checkpoint with a head of its own.")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    untie(arguments.model, arguments.folder)
