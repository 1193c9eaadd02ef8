"""What the repository needs to look after itself. Not shipped."""
