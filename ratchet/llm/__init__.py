"""Language-model calls, `recorded(retried(metered(provider)))`: a replay is free, live calls are always counted."""
