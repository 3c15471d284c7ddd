"""What all loops share: state that commits atomically, names that seed, identity that is compared. Standard library only."""
