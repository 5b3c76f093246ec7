"""On real devices: what can only be seen there, and all that also holds of the stand-in."""
