"""Proofs that traces are what was sampled: certificates, audits of stored runs, rescoring."""
