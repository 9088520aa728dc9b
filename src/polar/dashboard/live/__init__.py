"""The live dashboard: pages that a rollout server shows at its own address."""
