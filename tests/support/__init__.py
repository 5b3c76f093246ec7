"""What tests share, and the programs that they launch."""
