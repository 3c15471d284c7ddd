"""What all loops share: state that commits at once, seeds from names, identity that is compared. Stdlib only."""
