from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("matplotlib") else ["test_eval_plot.py"]
