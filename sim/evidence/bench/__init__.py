"""Speed on the standard work."""
