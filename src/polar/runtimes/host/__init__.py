"""What several runtimes need from Linux: processes, cgroups, namespaces, output of commands."""
