"""What a trainer imports: tasks in, results and trajectories out, over the rollout server's HTTP.

`PolarClient` is for programs that run an event loop, `SyncPolarClient` for those that do not; they have the same
methods. Of Polar this imports the types and nothing that runs sessions.
"""

from polar.client.client import DEFAULT_URL, PolarClient
from polar.client.draining import NotDrained
from polar.client.retries import Retry, ServerError
from polar.client.sync import SyncPolarClient

__all__ = ["DEFAULT_URL", "NotDrained", "PolarClient", "Retry", "ServerError", "SyncPolarClient"]
