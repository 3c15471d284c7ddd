"""What the command line's verbs do, one file per noun. Each is thin over DVC, Prefect or the library."""
