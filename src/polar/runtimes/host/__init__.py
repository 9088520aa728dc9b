"""What any runtime needs of Linux: processes, cgroups, namespaces, output of commands."""
