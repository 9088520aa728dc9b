"""Replies: sampled ids to content, reasoning and tool calls."""
