"""Keeps an agent from being scored for anything but its work: `protected` says what is work, `work` lays it
over the base, `witness` watches the command from outside, `judges` and `junit` check what it saw."""
