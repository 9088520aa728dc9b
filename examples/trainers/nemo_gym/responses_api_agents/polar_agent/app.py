"""The agent server that Gym starts: each of its runs is a session of Polar (docs/trainers.md, NeMo Gym)."""

from polar.trainers.bridges.nemo_gym import agent_class

PolarAgent = agent_class()

if __name__ == "__main__":
    PolarAgent.run_webserver()
