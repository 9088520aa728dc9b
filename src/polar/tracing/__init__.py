"""Traces of OpenTelemetry, one for each attempt at a session. Imported only where a collector is configured."""
