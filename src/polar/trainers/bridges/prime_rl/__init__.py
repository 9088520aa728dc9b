"""prime-rl, through verifiers: an environment whose rollouts are sessions, each as a verifiers `Trace`."""

from polar.trainers.bridges.prime_rl.environment import environment
from polar.trainers.bridges.prime_rl.message_graph import nodes_of
from polar.trainers.bridges.prime_rl.record import record_of

__all__ = ["environment", "nodes_of", "record_of"]
