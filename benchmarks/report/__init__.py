"""What makes the README's tables and pictures of the committed results."""
