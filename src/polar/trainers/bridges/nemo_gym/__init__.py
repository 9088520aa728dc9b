"""NeMo Gym: an agent server whose runs are sessions, and their tokens in Gym's token capture.

NeMo RL takes one contiguous chain of model calls for each run: the prompt of each begins with prompt and reply of
the one before. That is what the main trace is. Other traces of a session are dropped, or the whole run is masked
(`several_traces`); they are never joined."""

from polar.trainers.bridges.nemo_gym.agent import agent_class
from polar.trainers.bridges.nemo_gym.answers import SeveralTraces, run_request
from polar.trainers.bridges.nemo_gym.capture import RunCapture, TokenSource
from polar.trainers.bridges.nemo_gym.chain import chain_of

__all__ = ["RunCapture", "SeveralTraces", "TokenSource", "agent_class", "chain_of", "run_request"]
