"""The `polar` command, one file per subcommand."""
