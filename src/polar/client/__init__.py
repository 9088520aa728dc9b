"""The trainer's client of the rollout server: submits tasks, reads results and trajectories, sets the policy.

`PolarClient` is for programs with an event loop, `SyncPolarClient` for those without; they have the same methods.
"""

from polar.client.client import DEFAULT_URL, PolarClient
from polar.client.draining import NotDrained
from polar.client.retries import Retry, ServerError
from polar.client.sync import SyncPolarClient

__all__ = ["DEFAULT_URL", "NotDrained", "PolarClient", "Retry", "ServerError", "SyncPolarClient"]
