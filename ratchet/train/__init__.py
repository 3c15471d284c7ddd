"""Training and judging: device, arena, sealed trainer, sealed judge."""
