"""Ray is an extra: `make check` installs it, `make test` leaves out what imports it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("ray") else ["test_fleet_actor.py"]
