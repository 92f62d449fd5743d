"""Recordings of users' engines, replayed on this one, and the rules that explain them."""
