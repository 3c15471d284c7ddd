"""The research loop: an agent edits arena/train.py, the judge decides, what is better is kept as a commit."""
