"""Where untrusted code runs: a container, or a process of its own with limits. One interface, two implementations."""
