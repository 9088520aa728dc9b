"""Runs the program as a process of its own and compares what it prints."""

import subprocess
import sys
import tempfile
from pathlib import Path

CASES = {"one two three": "3\n", "one  two": "2\n", "  one\ntwo \n": "2\n", "": "0\n"}

with tempfile.TemporaryDirectory() as folder:
    for text, expected in CASES.items():
        path = Path(folder, "text")
        path.write_text(text)
        ran = subprocess.run([sys.executable, "count.py", str(path)], capture_output=True, text=True, check=False)
        assert ran.stdout == expected, (text, ran.stdout, ran.stderr)
