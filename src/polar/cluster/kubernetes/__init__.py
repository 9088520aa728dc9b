"""Gateway nodes on Kubernetes: plain manifests, for `kubectl apply`."""
