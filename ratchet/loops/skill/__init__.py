"""The skill loop: a frozen agent's instructions are trained by bounded edits that a held-out split must confirm."""
