"""A folder with a mount in it is not removed: the mounted files are not the session's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skips import kernel_cannot

SCRIPT = """
mount -t tmpfs none "$1/place/data" && echo precious > "$1/place/data/file" || exit 77
"$2" - "$1" <<'EOF'
import sys
from pathlib import Path
from polar.errors import RuntimeFailure
from polar.runtimes.files.folders import remove_tree
try:
    remove_tree(Path(sys.argv[1], "place"))
except RuntimeFailure as error:
    print(error)
EOF
cat "$1/place/data/file"
"""


def test_what_is_mounted_below_stays(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing: install util-linux")
    (tmp_path / "a place" / "place" / "data").mkdir(parents=True)
    folder = str(tmp_path / "a place")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh", folder, sys.executable],
        capture_output=True,
        text=True,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        kernel_cannot(f"no private mounts here: {done.stderr.strip()}")
    refused, precious = done.stdout.splitlines()
    assert refused.endswith(f"something is mounted at {folder}/place/data; unmount it first")
    assert precious == "precious"
