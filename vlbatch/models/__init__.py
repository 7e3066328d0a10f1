"""Models: finding and loading them, and the plain `generate` path that all of them share."""
