"""Replies: sampled ids to text, reasoning and tool calls."""
