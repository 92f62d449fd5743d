"""What answers questions: sweep, size, compare, explain, fit."""
